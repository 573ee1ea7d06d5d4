//! `ironverbs sim network`: flows between many hosts.

use super::{network_page, page::Failed};
use crate::options::{Pattern, Reaction, SimNetwork};
use crate::say::say_line;
use devmodel::engine::{
    network::Topology,
    scenario::{FlowOutcome, Outcome, Scenario, all_to_all, hpcc, htsim, incast, permutation},
    timing::Rate,
};
use devmodel::transport::Dcqcn;
use serde_json::json;
use std::{fmt::Write as _, fs, path::Path};

/// Maximum number of flows that are listed individually.
const LISTED: usize = 40;
/// Size in bytes of flows that do not end.
const ENDLESS: u64 = 1 << 40;

pub fn network(options: &SimNetwork) -> Result<(), Failed> {
    let scenario = scenario(options)?;
    if let Some(path) = &options.report {
        return network_page::write(&scenario, &command(std::env::args(), path), path);
    }
    let outcome = scenario.run()?;
    show(&scenario, &outcome);
    let write = |path: &Option<std::path::PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => fs::write(path, text()).map_err(|e| format!("cannot write {}: {e}", path.display())),
        None => Ok(()),
    };
    write(&options.fct, &|| outcome.fct())?;
    write(&options.pauses, &|| outcome.pfc())?;
    write(&options.qlen, &|| outcome.qlen())?;
    write(&options.csv, &|| csv(&outcome))?;
    write(&options.json, &|| json(&outcome))?;
    Ok(())
}

/// A command line that reproduces the report in `report`, without its folder.
fn command(words: impl Iterator<Item = String>, report: &Path) -> String {
    let (whole, file) = (report.to_string_lossy(), report.file_name().unwrap_or_default().to_string_lossy());
    let said = words.skip(1).map(|word| match word.replace(&*whole, &file) {
        word if word.contains(|c: char| c.is_whitespace() || "'\"\\$`;&|<>()*?#~".contains(c)) => {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
        word => word,
    });
    std::iter::once("ironverbs".to_string()).chain(said).collect::<Vec<_>>().join(" ")
}

fn text_of(path: &Path) -> Result<String, Failed> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()).into())
}

fn scenario(options: &SimNetwork) -> Result<Scenario, Failed> {
    let profile = options.profile.load()?;
    let rate = Rate(options.rate.unwrap_or(profile.wire.gbps.0));
    if !(1e-3..1e6).contains(&rate.0) {
        return Err(format!("--rate: expected Gb/s, 0.001 to 1000000, found {}", rate.0).into());
    }
    if options.delay > 1_000_000_000 {
        return Err(format!("--delay: expected 0 to 1000000000 ns, found {}", options.delay).into());
    }
    let delay = options.delay * 1000;
    let topology = match (&options.topology, &options.racks) {
        (Some(path), _) => Topology::parse(&path.display().to_string(), &text_of(path)?)?,
        (None, Some(racks)) => {
            let numbers: Option<Vec<usize>> = racks.split('x').map(|n| n.parse().ok()).collect();
            match numbers.as_deref() {
                Some([racks, hosts, spines]) if *racks < 1024 && *spines < 1024 => {
                    Topology::leaf_spine(*racks, *hosts, *spines, rate, delay)?
                }
                _ => return Err(format!("--racks: expected three numbers, as 4x8x2, found {racks}").into()),
            }
        }
        (None, None) => Topology::star(options.hosts, rate, delay)?,
    };
    let hosts = topology.hosts();
    let mut scenario = Scenario::new(profile, topology);
    scenario.switches.buffer = options.buffer;
    if options.pfc {
        scenario = scenario.with_pfc();
    }
    if let Some(reaction) = options.dcqcn {
        scenario = scenario.with_ecn();
        let parameters = match reaction {
            Reaction::Paper => Dcqcn::PAPER,
            Reaction::Driver => Dcqcn::DRIVER,
        };
        scenario.dcqcn = Dcqcn { burst: 0, ..parameters };
    }
    let endless = options.time.is_some().then_some(ENDLESS);
    let bytes = options.size.or(endless).unwrap_or(1_000_000);
    scenario.flows = match (&options.flows, &options.matrix) {
        (Some(path), _) => hpcc(&path.display().to_string(), &text_of(path)?)?,
        (None, Some(path)) => htsim(&path.display().to_string(), &text_of(path)?)?,
        (None, None) => match options.pattern {
            Pattern::Incast => incast(&hosts, *hosts.last().unwrap_or(&0), bytes),
            Pattern::AllToAll => all_to_all(&hosts, bytes),
            Pattern::Permutation => permutation(&hosts, bytes, options.seed),
        },
    };
    if let Some(ms) = options.time {
        if !(1e-6..=1e6).contains(&ms) {
            return Err(format!("--time: expected milliseconds, 0.000001 to 1000000, found {ms}").into());
        }
        let first = scenario.flows.iter().map(|flow| flow.start).min().unwrap_or(0);
        scenario.until = Some(first + (ms * 1e9) as u64);
    }
    if !(1..=1_000_000).contains(&options.sample) {
        return Err(format!("--sample: expected 1 to 1000000 us, found {}", options.sample).into());
    }
    (scenario.sample, scenario.seed) = (options.sample * 1_000_000, options.seed);
    scenario.mtu = options.mtu.unwrap_or(scenario.mtu);
    scenario.message = options.message.unwrap_or(scenario.message);
    Ok(scenario)
}

fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

fn show(scenario: &Scenario, outcome: &Outcome) {
    let done: Vec<&FlowOutcome> = outcome.flows.iter().filter(|flow| flow.end.is_some()).collect();
    if outcome.flows.len() <= LISTED && !done.is_empty() {
        say_line!(" from  to    bytes            took[us]     Gb/s     times as long as alone");
        for flow in &done {
            let took = flow.took().unwrap_or(0);
            say_line!(
                " {:<5} {:<5} {:<16} {:<12.2} {:<8.2} {:<.2}",
                flow.flow.from,
                flow.flow.to,
                flow.flow.bytes,
                us(took),
                flow.flow.bytes as f64 * 8e3 / took.max(1) as f64,
                took as f64 / flow.alone.max(1) as f64
            );
        }
    }
    let mut slower: Vec<f64> =
        done.iter().map(|flow| flow.took().unwrap_or(0) as f64 / flow.alone.max(1) as f64).collect();
    slower.sort_by(f64::total_cmp);
    let failed = outcome.flows.iter().filter(|flow| flow.failed).count();
    // There is no traffic before the first flow begins.
    let begun = outcome.flows.iter().map(|flow| flow.flow.start).min().unwrap_or(0);
    let duration = outcome.duration.saturating_sub(begun);
    say_line!(
        "{} flows between {} hosts over {} switches: {} done, {failed} failed, {:.2} us.",
        outcome.flows.len(),
        outcome.hosts.len(),
        outcome.switches.iter().filter(|is_switch| **is_switch).count(),
        done.len(),
        us(duration)
    );
    if slower.len() > 1 {
        let of = |share: f64| slower[((slower.len() as f64 * share) as usize).min(slower.len() - 1)];
        say_line!(
            "As long as alone, times: half {:.2}, 95 % {:.2}, 99 % {:.2}.",
            of(0.5),
            of(0.95),
            of(0.99)
        );
    }
    let came: u64 = outcome.came.iter().sum();
    let switch = |(node, ..): &&(usize, usize, _)| outcome.switches[*node];
    let longest = outcome.ports.iter().filter(switch).map(|(.., load)| load.most).max().unwrap_or(0);
    let paused: u64 = outcome.ports.iter().map(|(.., load)| load.paused).sum();
    say_line!(
        "{:.2} Gb/s of payload in all; {} frames, {} of them acknowledgements.",
        came as f64 * 8e3 / duration.max(1) as f64,
        outcome.frames[0],
        outcome.frames[1]
    );
    say_line!(
        "Longest queue of a port {longest} bytes; {} packets dropped, {} marked, {} notifications.",
        outcome.dropped(),
        outcome.marked(),
        outcome.notifications
    );
    say_line!(
        "{} pauses, {:.2} us of ports together; {} gaps in what came, {} timeouts.",
        outcome.pauses.iter().filter(|pause| pause.on).count(),
        us(paused),
        outcome.sequence_errors,
        outcome.timeouts
    );
    if scenario.until.is_none() && done.len() + failed < outcome.flows.len() {
        say_line!("Nothing was left to happen: the flows that are not done never will be.");
    }
}

/// Queues and rates over time: a line per sample.
fn csv(outcome: &Outcome) -> String {
    let mut text = String::from("us");
    for host in &outcome.hosts {
        let _ = write!(text, ",gbps_from_{host}");
    }
    let queues: Vec<usize> =
        (0..outcome.ports.len()).filter(|port| outcome.switches[outcome.ports[*port].0]).collect();
    for port in &queues {
        let (node, number, _) = outcome.ports[*port];
        let _ = write!(text, ",queue_{node}_{}", number + 1);
    }
    text.push('\n');
    for pair in outcome.samples.windows(2) {
        let _ = write!(text, "{}", us(pair[1].at));
        let time = (pair[1].at - pair[0].at).max(1) as f64;
        for (before, now) in pair[0].came.iter().zip(&pair[1].came) {
            let _ = write!(text, ",{:.3}", (now - before) as f64 * 8e3 / time);
        }
        for port in &queues {
            let _ = write!(text, ",{}", pair[1].queued[*port]);
        }
        text.push('\n');
    }
    text
}

fn json(outcome: &Outcome) -> String {
    let ns = |ps: u64| ps as f64 / 1e3;
    let flows = outcome.flows.iter().map(|flow| {
        json!({
            "from": flow.flow.from, "to": flow.flow.to, "bytes": flow.flow.bytes, "start_ns": ns(flow.flow.start),
            "took_ns": flow.took().map(ns), "alone_ns": ns(flow.alone), "failed": flow.failed,
        })
    });
    let ports = outcome.ports.iter().map(|(node, port, load)| {
        json!({
            "node": node, "port": port + 1, "is_switch": outcome.switches[*node], "packets": load.packets,
            "longest_queue": load.most, "marked": load.marked, "dropped": load.dropped, "lost": load.lost,
            "paused_ns": ns(load.paused),
        })
    });
    let pauses = outcome.pauses.iter().map(
        |pause| json!({ "ns": ns(pause.at), "node": pause.node, "port": pause.port + 1, "on": pause.on }),
    );
    let samples = outcome
        .samples
        .iter()
        .map(|sample| json!({ "ns": ns(sample.at), "queued": sample.queued, "came": sample.came }));
    let whole = json!({
        "duration_ns": ns(outcome.duration),
        "frames": outcome.frames[0],
        "acknowledgements": outcome.frames[1],
        "notifications": outcome.notifications,
        "sequence_errors": outcome.sequence_errors,
        "timeouts": outcome.timeouts,
        "flows": flows.collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "pauses": pauses.collect::<Vec<_>>(),
        "samples": samples.collect::<Vec<_>>(),
    });
    format!("{whole:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_the_command_that_made_it_as_a_shell_takes_it() {
        let words =
            ["/usr/bin/ironverbs", "sim", "network", "--flows", "it's mine.txt", "--report=/tmp/a/page.html"];
        let said = command(words.into_iter().map(String::from), Path::new("/tmp/a/page.html"));
        assert_eq!(said, r"ironverbs sim network --flows 'it'\''s mine.txt' --report=page.html");
    }
}
