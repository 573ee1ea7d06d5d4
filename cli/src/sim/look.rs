//! Details of a run beyond its figures: a message's time breakdown, the load of units, files for other programs.

use super::perfetto;
use crate::{
    adapter::counted,
    faults,
    options::SimLook,
    say::{say, say_line},
};
use devmodel::LinkLayer;
use devmodel::engine::faults::FaultReport;
use devmodel::engine::sim::{self, Figures, Measure, Plan, Report, Watch};
use devmodel::engine::{Ps, Station, spans::Span};
use devmodel::wire::Capture;
use launcher::counters::{HARDWARE, PORT};
use std::{error::Error, fs::File, io::BufWriter, io::Write, path::Path, time::Duration};

/// Picoseconds per nanosecond.
const NS: f64 = 1e3;

/// The two ends of a run, by the number of their card.
pub const ENDS: [&str; 2] = ["client", "server"];

/// Runs `plan`, and writes its frames meanwhile if requested.
pub fn run(plan: &Plan, look: &SimLook) -> Result<Report, Box<dyn Error>> {
    if look.waterfall.is_some() && plan.measure == Measure::Bandwidth {
        return Err("--waterfall: expected a program that measures latency, one message at a time".into());
    }
    if let Some(number) = look.waterfall.filter(|number| !(1..=plan.iters as usize).contains(number)) {
        return Err(format!("--waterfall: expected 1 to {}, found {number}", plan.iters).into());
    }
    let timeline = look.waterfall.is_some() || look.trace.is_some();
    let plan_of_faults =
        faults::wanted(look.faults.fault.as_deref(), look.faults.timeline.as_deref(), plan.seed)?;
    let mut found = FaultReport::default();
    let faults = plan_of_faults.clone().map(|plan| (plan, &mut found));
    let run = match &look.pcap {
        None => sim::watch(plan, Watch { timeline, faults, ..Watch::default() }).map_err(Into::into),
        Some(path) => captured(plan, Watch { timeline, faults, ..Watch::default() }, path),
    };
    if let Some(plan) = plan_of_faults {
        // A run that the faults have aborted still has a timeline to show.
        if look.faults.fault.is_some() {
            say!("{}", faults::table(&plan, &found));
        }
        faults::finish(&plan, &found, look.faults.timeline.as_deref())?;
    }
    run
}

/// Runs `plan`, and writes its frames to `path`.
fn captured<'w>(plan: &'w Plan, watch: Watch<'w>, path: &Path) -> Result<Report, Box<dyn Error>> {
    let mut file = Capture::new(writer(path)?, LinkLayer::Ethernet).map_err(not_written(path))?;
    let mut failed = None;
    let mut take = |at: Ps, whole: &[u8]| {
        let written = file.write(Duration::from_nanos(at / 1000), whole);
        failed = failed.take().or(written.err());
    };
    let report = sim::watch(plan, Watch { frames: Some(&mut take), ..watch })?;
    match failed {
        Some(e) => Err(not_written(path)(e)),
        None => file.into_inner().flush().map_err(not_written(path)).map(|()| report),
    }
}

/// Shows the requested details of a run.
pub fn show(plan: &Plan, report: &Report, look: &SimLook) -> Result<(), Box<dyn Error>> {
    if let Some(number) = look.waterfall {
        waterfall(number, report);
    }
    if look.counters {
        counters(report);
    }
    if let Some(path) = &look.trace {
        let name = format!("{:?} of {} bytes, {}", plan.operation, plan.bytes, plan.profile.name);
        writer(path)?.write_all(&perfetto::trace(&name, &report.timeline)).map_err(not_written(path))?;
    }
    Ok(())
}

fn writer(path: &Path) -> Result<BufWriter<File>, Box<dyn Error>> {
    Ok(BufWriter::new(File::create(path).map_err(not_written(path))?))
}

fn not_written(path: &Path) -> impl Fn(std::io::Error) -> Box<dyn Error> + '_ {
    move |e| format!("cannot write {}: {e}", path.display()).into()
}

/// A line for each span of message `number`, and their sum.
fn waterfall(number: usize, report: &Report) {
    let spans = report.timeline.of(number - 1);
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return };
    say_line!();
    say_line!("message {number} of {}, in nanoseconds:", report.iters);
    say_line!("{:>10} {:>10}  {:<7} {:<5}", "from", "takes", "", "unit");
    for Span { part, card, from, until, .. } in &spans {
        let end = ENDS[usize::from(*card).min(1)];
        let (begin, takes) = ((from - first.from) as f64 / NS, (until - from) as f64 / NS);
        say_line!("{begin:>10.3} {takes:>10.3}  {end:<7} {:<5} {part}", part.unit());
    }
    let sum = last.until - first.from;
    let counted = report.samples[number - 1];
    let sum_in_ns = sum as f64 / NS;
    match sum == counted {
        true => say_line!("{:>10} {sum_in_ns:>10.3}  which is the message's latency", "sum"),
        false => say_line!(
            "{:>10} {sum_in_ns:>10.3}  there and back: half of it, {:.3}, is the message's latency",
            "sum",
            counted as f64 / NS
        ),
    }
}

/// Tables of both cards' units, and the functions' counters.
fn counters(report: &Report) {
    let whole = report.duration.max(1) as f64;
    for (card, loads) in report.loads.iter().enumerate() {
        say_line!();
        say_line!("{}, {:.3} us:", ENDS[card.min(1)], report.duration as f64 / NS / 1e3);
        say_line!("{:<5} {:<8} {:>10} {:>9} {:>12}", "unit", "", "count", "busy", "waited, ns");
        for (station, load) in Station::ALL.iter().zip(loads).filter(|(_, load)| load.count != 0) {
            let (unit, what) = station.name();
            let busy = 100.0 * load.busy as f64 / whole;
            let waited = load.waited as f64 / load.count as f64 / NS;
            say_line!("{unit:<5} {what:<8} {:>10} {busy:>7.1} % {waited:>12.1}", load.count);
        }
    }
    say_line!();
    let programs = report.counters.len() / 2;
    for (function, counters) in report.counters.iter().enumerate() {
        let (end, number) = (ENDS[usize::from(function >= programs)], function % programs.max(1));
        let which = if programs > 1 { format!("{end} {}", number + 1) } else { end.into() };
        say_line!("{which}: {}", counted(counters).join(", "));
        for (folder, named) in [("counters", PORT), ("hw_counters", HARDWARE)] {
            let all = named.iter().map(|(name, value)| (name, value(counters)));
            let some: Vec<_> =
                all.filter(|(_, value)| *value != 0).map(|(name, value)| format!("{name} {value}")).collect();
            if !some.is_empty() {
                say_line!("  below /sys, in {folder}: {}", some.join(", "));
            }
        }
    }
    if let Figures::Bandwidth(found) = report.figures {
        say_line!("{:.2} Gb/s of payload", found.gbps());
    }
}
