//! `ironverbs bench`: runs perftest on the node and UCX over shared memory alternately, and prints medians and ratios.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use node::dir;

use crate::options::Bench;
use crate::say::fail;
use crate::say::say_line;
use crate::{line, pair, perftest};

const LIMIT: Duration = Duration::from_secs(120);

/// A measured quantity and its limits.
struct Row {
    name: &'static str,
    unit: &'static str,
    program: Program,
    /// Index of the row that it is compared with.
    against: Option<usize>,
    floor: Option<Floor>,
}

enum Program {
    /// The perftest program, its arguments, and the column of the result.
    Perftest(&'static str, &'static [&'static str], usize),
    /// The UCX test, message size, iterations, and the column of the result in its CSV line.
    Ucx(&'static str, &'static str, &'static str, usize),
}

enum Floor {
    /// Maximum ratio to the reference.
    AtMost(f64),
    /// Minimum ratio to the reference.
    AtLeast(f64),
    /// Minimum value.
    Absolute(f64),
}

// Columns of perftest: #bytes #iterations t_min t_max t_typical ..., and #bytes #iterations peak average MsgRate.
const TYPICAL: usize = 4;
const AVERAGE: usize = 3;
const RATE: usize = 4;

const ROWS: [Row; 8] = [
    Row {
        name: "UCX shm tag_lat 2 B",
        unit: "us",
        program: Program::Ucx("tag_lat", "2", "200000", 1),
        against: None,
        floor: None,
    },
    Row {
        name: "UCX shm tag_bw 64 KiB",
        unit: "MB/s",
        program: Program::Ucx("tag_bw", "65536", "20000", 5),
        against: None,
        floor: None,
    },
    Row {
        name: "ib_send_lat 2 B",
        unit: "us",
        program: Program::Perftest("ib_send_lat", &["-s", "2", "-n", "100000"], TYPICAL),
        against: Some(0),
        floor: Some(Floor::AtMost(3.0)),
    },
    Row {
        name: "ib_write_lat 2 B",
        unit: "us",
        program: Program::Perftest("ib_write_lat", &["-s", "2", "-n", "100000"], TYPICAL),
        against: Some(0),
        floor: Some(Floor::AtMost(5.0)),
    },
    Row {
        name: "ib_read_lat 2 B",
        unit: "us",
        program: Program::Perftest("ib_read_lat", &["-s", "2", "-n", "100000"], TYPICAL),
        against: Some(0),
        floor: None,
    },
    Row {
        name: "ib_write_bw 64 KiB",
        unit: "MB/s",
        program: Program::Perftest("ib_write_bw", &["-s", "65536", "-n", "20000"], AVERAGE),
        against: Some(1),
        floor: Some(Floor::AtLeast(0.5)),
    },
    Row {
        name: "ib_read_bw 64 KiB",
        unit: "MB/s",
        program: Program::Perftest("ib_read_bw", &["-s", "65536", "-n", "20000"], AVERAGE),
        against: Some(1),
        floor: None,
    },
    Row {
        name: "ib_write_bw 2 B",
        unit: "M/s",
        program: Program::Perftest("ib_write_bw", &["-s", "2", "-n", "1000000"], RATE),
        against: None,
        floor: Some(Floor::Absolute(1.0)),
    },
];

/// Maximum resident size of a pingpong process, in MiB.
const RESIDENT_MIB: u64 = 64;

pub fn bench(bench: &Bench) -> ExitCode {
    match try_bench(bench) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if bench.check => fail(1, "bench: below the floor, see the table"),
        Ok(false) => ExitCode::SUCCESS,
        Err(why) => fail(1, format!("bench: {why}")),
    }
}

fn try_bench(bench: &Bench) -> Result<bool, String> {
    let node = dir::claim(&bench.node.path()).map_err(|e| e.to_string())?;
    let mut samples: Vec<Vec<f64>> = ROWS.iter().map(|_| Vec::new()).collect();
    let (mut lines, mut resident_kib) = (Vec::new(), 0);
    keep_to_both();
    for round in 1..=bench.rounds {
        lines.extend(line::one_way());
        for (row, samples) in ROWS.iter().zip(&mut samples) {
            let (value, kib) = measure(row, &node).map_err(|e| format!("{}: {e}", row.name))?;
            eprintln!("round {round}/{}: {:22} {value:.3} {}", bench.rounds, row.name, row.unit);
            samples.push(value);
            if row.name.starts_with("ib_send_lat") {
                resident_kib = resident_kib.max(kib);
            }
        }
    }
    let medians: Vec<f64> = samples.iter_mut().map(|s| median(s)).collect();
    say_line!("{} rounds in turn, each side on a CPU of its own; medians (min to max)\n", bench.rounds);
    say_row("one cache line, one way", "ns", &mut lines, ("", ""));
    let mut good = true;
    for ((row, samples), value) in ROWS.iter().zip(&mut samples).zip(&medians) {
        let reference = row.against.map(|i| medians[i]);
        let ratio = reference.map_or_else(String::new, |r| format!("x{:.2} of UCX", value / r));
        let (met, floor) = judge(row, *value, reference);
        good &= met;
        say_row(row.name, row.unit, samples, (&ratio, &floor));
    }
    let mib = resident_kib >> 10;
    good &= mib <= RESIDENT_MIB;
    say_line!(
        "{:23} {mib:>10} MiB  of an ib_send_lat process; floor: at most {RESIDENT_MIB}",
        "resident memory"
    );
    Ok(good)
}

/// Prints the median of `samples` and their range.
fn say_row(name: &str, unit: &str, samples: &mut [f64], (ratio, floor): (&str, &str)) {
    let value = median(samples);
    if let (Some(low), Some(high)) = (samples.first(), samples.last()) {
        say_line!("{name:23} {value:>10.3} {unit:4} ({low:.3} to {high:.3})  {ratio:14} {floor}");
    }
}

fn judge(row: &Row, value: f64, reference: Option<f64>) -> (bool, String) {
    let (met, text) = match (&row.floor, reference) {
        (Some(Floor::AtMost(n)), Some(r)) => (value <= n * r, format!("floor: at most x{n}")),
        (Some(Floor::AtLeast(n)), Some(r)) => (value >= n * r, format!("floor: at least x{n}")),
        (Some(Floor::Absolute(n)), _) => (value >= *n, format!("floor: at least {n} {}", row.unit)),
        _ => return (true, String::new()),
    };
    (met, format!("{text}, {}", if met { "met" } else { "MISSED" }))
}

fn measure(row: &Row, node: &Path) -> Result<(f64, u64), String> {
    let port = pair::free_port()?;
    match row.program {
        Program::Perftest(name, args, column) => {
            let on = |device: &str, peer: Option<&str>| -> Result<Command, String> {
                let mut all: Vec<String> = ["-d", device, "-x", "1", "-F", "-p"].map(String::from).to_vec();
                all.push(port.to_string());
                all.extend(args.iter().copied().chain(peer).map(String::from));
                Ok(pinned(if peer.is_some() { 1 } else { 0 }, perftest::on_node(node, name, &all)?))
            };
            let outcome =
                pair::run(&mut on("iron1", None)?, &mut on("iron2", Some("127.0.0.2"))?, port, true, LIMIT)?;
            let row = perftest::last_row(&outcome.output).ok_or("no table in the output")?;
            let value = row.get(column).copied().ok_or("the table lacks the column")?;
            Ok((value, outcome.resident_kib))
        }
        Program::Ucx(test, size, iterations, column) => {
            let port_text = port.to_string();
            let mut server = Command::new("ucx_perftest");
            server.args(["-p", &port_text]);
            let mut client = Command::new("ucx_perftest");
            client.args([
                "-p",
                &port_text,
                "127.0.0.1",
                "-t",
                test,
                "-s",
                size,
                "-n",
                iterations,
                "-f",
                "-v",
            ]);
            for c in [&mut server, &mut client] {
                c.args(ucx_compat_args()).env("UCX_TLS", "shm,self");
            }
            let outcome = pair::run(&mut pinned(0, server), &mut pinned(1, client), port, true, LIMIT)?;
            let line = outcome.output.lines().rev().find(|l| l.starts_with(|c: char| c.is_ascii_digit()));
            let value = line.and_then(|l| l.split(',').nth(column)).and_then(|v| v.trim().parse().ok());
            Ok((value.ok_or("no CSV line in the output")?, outcome.resident_kib))
        }
    }
}

/// Arguments that make UCX's program connect to its peer by itself: when built with MPI, as in Debian 13, it expects to be started by MPI.
fn ucx_compat_args() -> &'static [&'static str] {
    let help = Command::new("ucx_perftest").arg("-h").output().map(|o| o.stdout).unwrap_or_default();
    let knows = String::from_utf8_lossy(&help).lines().any(|line| line.trim_start().starts_with("-P <0|1>"));
    if knows { &["-P", "0"] } else { &[] }
}

/// The CPUs that the two sides run on, if more than one may be used.
fn cpus() -> Option<[usize; 2]> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).map(cpu_list)?;
    allowed.first_chunk().copied()
}

/// Restricts this thread and those it starts to the two CPUs of the sides, so that comparison values are measured on them as well.
fn keep_to_both() {
    let Some([one, other]) = cpus() else { return };
    let (list, me) = (format!("{one},{other}"), std::process::id().to_string());
    let done = Command::new("taskset").args(["-p", "-c", &list, &me]).stdout(Stdio::null()).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!(
            "bench: taskset could not keep this process to CPUs {list}; the cache line may be of others"
        );
    }
}

/// Runs `command` on the CPU of side `n`, if there is more than one.
fn pinned(n: usize, command: Command) -> Command {
    let Some(cpu) = cpus().and_then(|cpus| cpus.get(n).copied()) else { return command };
    let mut outer = Command::new("taskset");
    outer.args(["-c", &cpu.to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            outer.env(name, value);
        }
    }
    outer
}

/// Parses a list of numbers such as `0-3,8`.
fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// The median of the samples; sorts them.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let n = samples.len();
    match n {
        0 => f64::NAN,
        _ if n % 2 == 1 => samples[n / 2],
        _ => (samples[n / 2 - 1] + samples[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_moved_by_one_slow_round() {
        assert_eq!(median(&mut [0.9, 50.0, 1.0]), 1.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("\t0-2,5\n"), [0, 1, 2, 5]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn floors_are_judged_against_the_row_named() {
        let send = &ROWS[2];
        assert!(judge(send, 0.29, Some(0.1)).0);
        assert!(!judge(send, 0.31, Some(0.1)).0);
        assert!(ROWS.iter().all(|r| r.against.is_none_or(|i| matches!(ROWS[i].program, Program::Ucx(..)))));
    }
}
