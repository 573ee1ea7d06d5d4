//! `ironverbs sim network --report`: one self-contained page that shows the effect of pauses and DCQCN on the same flows.

use super::page::{Curve, FONT, Failed, HEAD, draw, text};
use devmodel::engine::scenario::{Outcome, Scenario};
use plotters::prelude::*;
use std::{fmt::Write as _, fs, path::Path};

/// Maximum number of senders with a separate line.
const LINES: usize = 8;
/// Points per line.
const POINTS: usize = 200;
/// Size of a chart in pixels.
const CHART: (u32, u32) = (410, 300);

const COLORS: [RGBColor; LINES] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xc8, 0x55, 0x3d),
    RGBColor(0x3a, 0x7d, 0x44),
    RGBColor(0x7a, 0x5c, 0x99),
    RGBColor(0xe0, 0x9f, 0x3e),
    RGBColor(0x54, 0x9f, 0xc4),
    RGBColor(0xd6, 0x7b, 0xa8),
    RGBColor(0x87, 0xb3, 0x4d),
];

/// Writes the page about `scenario` to `path`. `command` is the command line that makes it.
pub fn write(scenario: &Scenario, command: &str, path: &Path) -> Result<(), Failed> {
    let plain = || scenario.clone();
    let variants = [
        ("Nothing: what does not fit into the buffer is lost", plain()),
        ("PFC: switches pause who sends", plain().with_pfc()),
        ("DCQCN: switches mark, senders slow down", plain().with_ecn()),
        ("PFC and DCQCN", plain().with_pfc().with_ecn()),
    ];
    let mut page = String::from(HEAD);
    writeln!(
        page,
        "<h1>{} flows between {} hosts</h1>\n<p>By <code>{}</code>, which writes the same page at every run.</p>",
        scenario.flows.len(),
        scenario.topology.hosts().len(),
        text(command)
    )?;
    for (title, variant) in variants {
        let outcome = variant.run()?;
        writeln!(page, "<h2>{title}</h2>\n{}\n<div class=charts>", words(&outcome))?;
        page += &rates(&outcome)?;
        page += &queue(&outcome)?;
        page += &paused(&outcome)?;
        page += "</div>\n";
    }
    page += "</body>\n</html>\n";
    fs::write(path, page).map_err(|e| format!("cannot write {}: {e}", path.display()).into())
}

fn words(outcome: &Outcome) -> String {
    let done = outcome.flows.iter().filter(|flow| flow.end.is_some()).count();
    let paused: u64 = outcome.ports.iter().map(|(.., load)| load.paused).sum();
    format!(
        "<p>{done} of {} flows done after {:.1} us, {:.2} Gb/s of payload in all. {} packets dropped, {} marked, {} notifications, {} pauses \
         of {:.1} us together, {} timeouts.</p>",
        outcome.flows.len(),
        outcome.duration as f64 / 1e6,
        outcome.came.iter().sum::<u64>() as f64 * 8e3 / outcome.duration.max(1) as f64,
        outcome.dropped(),
        outcome.marked(),
        outcome.notifications,
        outcome.pauses.iter().filter(|pause| pause.on).count(),
        paused as f64 / 1e6,
        outcome.timeouts
    )
}

/// The samples that a line has points at, evenly spaced.
fn looks(outcome: &Outcome) -> Vec<usize> {
    (0..outcome.samples.len()).step_by(outcome.samples.len().div_ceil(POINTS).max(1)).collect()
}

fn milliseconds(ps: u64) -> f64 {
    ps as f64 / 1e9
}

/// Draws the rate of each sender over time.
fn rates(outcome: &Outcome) -> Result<String, Failed> {
    let looks = looks(outcome);
    let senders = (0..outcome.hosts.len()).filter(|host| outcome.came[*host] > 0).take(LINES);
    let names: Vec<(usize, String)> =
        senders.map(|host| (host, format!("host {}", outcome.hosts[host]))).collect();
    let curves: Vec<Curve<'_>> = names
        .iter()
        .zip(COLORS)
        .map(|((host, name), color)| {
            let points = looks.windows(2).map(|pair| {
                let [before, now] = [pair[0], pair[1]].map(|look| &outcome.samples[look]);
                let rate =
                    (now.came[*host] - before.came[*host]) as f64 * 8e3 / (now.at - before.at).max(1) as f64;
                (milliseconds(now.at), rate)
            });
            (name.as_str(), color, points.collect())
        })
        .collect();
    chart("Gb/s of payload from each sender", outcome, &curves)
}

/// The queue length of the switch port with the longest queue, over time: the maximum of all samples between two points.
fn queue(outcome: &Outcome) -> Result<String, Failed> {
    let at_switch = |port: &usize| outcome.switches[outcome.ports[*port].0];
    let longest = (0..outcome.ports.len()).filter(at_switch).max_by_key(|port| outcome.ports[*port].2.most);
    let looks = looks(outcome);
    let queued = looks.windows(2).map(|pair| {
        let between = &outcome.samples[pair[0]..pair[1]];
        let most = between.iter().map(|sample| longest.map_or(0, |port| sample.queued[port])).max();
        (milliseconds(outcome.samples[pair[1]].at), most.unwrap_or(0) as f64 / 1e3)
    });
    chart("kB in the longest queue", outcome, &[("", COLORS[0], queued.collect())])
}

/// Number of paused ports over time.
fn paused(outcome: &Outcome) -> Result<String, Failed> {
    let (mut paused, mut next) = (0i64, 0);
    let points = looks(outcome).into_iter().map(|look| {
        let at = outcome.samples[look].at;
        while let Some(pause) = outcome.pauses.get(next).filter(|pause| pause.at <= at) {
            paused += if pause.on { 1 } else { -1 };
            next += 1;
        }
        (milliseconds(at), paused as f64)
    });
    let points = points.collect();
    chart("Ports that are paused", outcome, &[("", COLORS[1], points)])
}

fn chart(title: &str, outcome: &Outcome, curves: &[Curve<'_>]) -> Result<String, Failed> {
    let end = outcome.samples.last().map_or(1.0, |sample| milliseconds(sample.at)).max(1e-6);
    let begin = outcome.samples.first().map_or(0.0, |sample| milliseconds(sample.at)).min(end * 0.999);
    let most = curves.iter().flat_map(|(.., points)| points).map(|(_, value)| *value).fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, CHART).into_drawing_area();
        let mut builder = ChartBuilder::on(&root);
        builder
            .caption(title, (FONT.0, 17))
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(48);
        let along =
            |ms: &f64| format!("{ms:.3}").trim_end_matches('0').trim_end_matches('.').to_owned() + " ms";
        draw(
            builder.build_cartesian_2d(begin..end, 0.0..most * 1.05)?,
            curves,
            &along,
            SeriesLabelPosition::LowerRight,
        )?;
        root.present()?;
    }
    Ok(svg)
}
