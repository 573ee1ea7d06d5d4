//! `ironverbs sim speed`: the speed of the simulation on this machine.

use super::page::Failed;
use crate::say::say_line;
use devmodel::engine::{
    network::Topology,
    scenario::{Flow, Scenario, permutation},
    sim::{self, Measure, Operation, Plan},
    timing::{Rate, TimingProfile},
};
use std::{fs, time::Instant};

/// Runs per measurement; the median one counts.
const RUNS: usize = 3;
/// The delay of a link from end to end, in picoseconds.
const DELAY: u64 = 500_000;

/// Prints the simulation's packets per second and processor, and its memory use.
pub fn speed() -> Result<(), Failed> {
    say_line!(
        " {:<34} {:>8} {:>8} {:>10} {:>10} {:>12} {:>8}",
        "",
        "hosts",
        "QPs",
        "packets",
        "seconds",
        "M packets/s",
        "MiB"
    );
    let profile = TimingProfile::load("direct-x16")?;
    for (what, bytes, iters) in
        [("a pair, WRITEs of 64 KiB", 65536, 50_000), ("a pair, WRITEs of 2 B", 2, 400_000)]
    {
        let mut plan = Plan::new(Operation::Write, Measure::Bandwidth, profile.clone());
        (plan.bytes, plan.iters) = (bytes, iters);
        row(what, 2, 2, || Ok(sim::run(&plan)?.frames[0]))?;
    }
    let star = |hosts| Topology::star(hosts, Rate(100.0), DELAY);
    for qps in [1, 10, 100, 1000] {
        let mut scenario = Scenario::new(profile.clone(), star(2)?);
        scenario.flows = (0..qps).map(|_| Flow::write(0, 1, 2_000_000_000 / qps)).collect();
        row("a switch, all from one to another", 2, 2 * qps as usize, || Ok(scenario.run()?.frames[0]))?;
    }
    for hosts in [2, 8, 32, 128] {
        let topology = star(hosts)?;
        let mut scenario = Scenario::new(profile.clone(), topology).with_pfc().with_ecn();
        let all: Vec<usize> = (0..hosts).collect();
        scenario.flows = permutation(&all, 2_000_000_000 / hosts as u64, 1);
        row("a switch, each to one other", hosts, 2 * hosts, || Ok(scenario.run()?.frames[0]))?;
    }
    Ok(())
}

fn row(what: &str, hosts: usize, qps: usize, run: impl Fn() -> Result<u64, Failed>) -> Result<(), Failed> {
    let (mut times, mut packets, mut most) = (Vec::new(), 0, 0);
    for _ in 0..RUNS {
        // Resets the peak memory size (proc(5), clear_refs).
        let counts = fs::write("/proc/self/clear_refs", "5").is_ok();
        let begin = Instant::now();
        packets = run()?;
        times.push(begin.elapsed().as_secs_f64());
        most = most.max(if counts { peak().unwrap_or(0) } else { 0 });
    }
    times.sort_by(f64::total_cmp);
    let seconds = times[RUNS / 2];
    say_line!(
        " {what:<34} {hosts:>8} {qps:>8} {packets:>10} {seconds:>10.3} {:>12.2} {:>8}",
        packets as f64 / seconds / 1e6,
        most / 1024
    );
    Ok(())
}

/// The peak memory size of this process, in KiB.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}
