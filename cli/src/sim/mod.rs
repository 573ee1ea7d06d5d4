//! `ironverbs sim`: perftest's tables in virtual time.

mod look;
mod network;
mod network_page;
mod page;
mod perfetto;
mod report;
mod speed;

use std::path::Path;
use std::process::ExitCode;

use crate::options::{Sim, SimPlan};
use crate::say::{fail, say, say_line};
use devmodel::engine::sim::{Bandwidth, Figures, Latency, Measure, Operation, Plan, Report, rows};
use devmodel::engine::timing::TimingProfile;

pub fn sim(options: &Sim) -> ExitCode {
    let (operation, measure, options) = match options {
        Sim::SendLat(plan) => (Operation::Send, Measure::Latency, plan),
        Sim::WriteLat(plan) => (Operation::Write, Measure::Latency, plan),
        Sim::ReadLat(plan) => (Operation::Read, Measure::Latency, plan),
        Sim::AtomicLat(plan) => (atomic(plan), Measure::Latency, plan),
        Sim::SendBw(plan) => (Operation::Send, Measure::Bandwidth, plan),
        Sim::WriteBw(plan) => (Operation::Write, Measure::Bandwidth, plan),
        Sim::ReadBw(plan) => (Operation::Read, Measure::Bandwidth, plan),
        Sim::AtomicBw(plan) => (atomic(plan), Measure::Bandwidth, plan),
        Sim::Report { profile, file } => {
            let done = profile.load().map_err(Into::into).and_then(|profile| {
                let command = format!("ironverbs sim report --profile {}", profile.name);
                report::write(&profile, &command, file)
            });
            return done.map_or_else(|why: Box<dyn std::error::Error>| fail(1, why), |()| ExitCode::SUCCESS);
        }
        Sim::Calibrate { profiles } => return calibrate(profiles.as_deref()),
        Sim::Speed => return speed::speed().map_or_else(|why| fail(1, why), |()| ExitCode::SUCCESS),
        Sim::Network(options) => {
            return network::network(options).map_or_else(|why| fail(1, why), |()| ExitCode::SUCCESS);
        }
    };
    match table(operation, measure, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(1, why),
    }
}

fn atomic(plan: &SimPlan) -> Operation {
    if plan.cmp_and_swap { Operation::CompareSwap } else { Operation::FetchAdd }
}

fn table(
    operation: Operation,
    measure: Measure,
    options: &SimPlan,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut plan = Plan::new(operation, measure, options.profile.load()?);
    plan.bytes = options.size.map_or(plan.bytes, |size| u32::try_from(size).unwrap_or(u32::MAX));
    plan.iters = options.iters.unwrap_or(plan.iters);
    plan.depth = options.tx_depth;
    plan.inline = options.inline_size.unwrap_or(plan.inline);
    (plan.moderation, plan.qps, plan.functions) = (options.cq_mod, options.qp, options.functions);
    (plan.mtu, plan.seed) = (options.mtu, options.seed);
    if options.all && operation.is_atomic() {
        return Err("--all: atomics have 8 bytes and no others".into());
    }
    let sizes: Vec<u32> = if options.all { (1..24).map(|log| 1 << log).collect() } else { vec![plan.bytes] };
    for (line, bytes) in sizes.into_iter().enumerate() {
        plan.bytes = bytes;
        let report = look::run(&plan, &options.look)?;
        print(&report, line == 0, options.report_gbits);
        look::show(&plan, &report, &options.look)?;
    }
    Ok(())
}

fn print(report: &Report, first: bool, gbits: bool) {
    match report.figures {
        Figures::Latency(latency) => print_latency(report, &latency, first),
        Figures::Bandwidth(bandwidth) => {
            if first {
                let unit = if gbits { "Gb/sec" } else { "MiB/sec" };
                say_line!(" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]");
            }
            print_bandwidth(report, &bandwidth, gbits);
            if report.programs.len() > 1 {
                for program in &report.programs {
                    print_bandwidth(report, program, gbits);
                }
            }
        }
    }
}

fn print_latency(report: &Report, l: &Latency, first: bool) {
    if first {
        say_line!(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
             t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
        );
    }
    say_line!(
        " {:<7} {:<10} {:<14.2} {:<14.2} {:<14.2} {:<14.2} {:<14.2} {:<14.2} {:<14.2}",
        report.bytes,
        report.iters,
        l.min,
        l.max,
        l.typical,
        l.avg,
        l.stdev,
        l.p99,
        l.p99_9
    );
}

fn print_bandwidth(report: &Report, b: &Bandwidth, gbits: bool) {
    // Gb/s per MiB/s.
    let unit = if gbits { 8.0 * 1048576.0 / 1e9 } else { 1.0 };
    say_line!(
        " {:<10} {:<14} {:<19.2} {:<21.2} {:<.6}",
        report.bytes,
        report.iters,
        b.peak * unit,
        b.average * unit,
        b.mpps
    );
}

/// The table of docs/time.md.
fn calibrate(profiles: Option<&Path>) -> ExitCode {
    let load = |name: &str| match profiles {
        Some(folder) => TimingProfile::load(&folder.join(format!("{name}.toml")).display().to_string()),
        None => TimingProfile::load(name),
    };
    let rows = match rows::all(load) {
        Ok(rows) => rows,
        Err(e) => return fail(1, e),
    };
    say!("{}", rows::table(&rows));
    let off = rows.iter().filter(|row| !row.holds()).count();
    say_line!();
    say_line!("{} of {} rows hold.", rows.len() - off, rows.len());
    ExitCode::SUCCESS
}
