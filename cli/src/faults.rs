//! Fault plans and their results.

use devmodel::engine::faults::{FaultPlan, FaultReport, Followed, FrameLine};
use hwspec::wire::{NakCode, Syndrome};
use serde_json::{Value, json};
use std::{error::Error, fs, path::Path};

/// Maximum number of faults and NAKs that are listed individually.
const TOLD: usize = 20;

/// The plan in the file `fault`. It has no faults if only a timeline is requested.
///
/// # Errors
/// Those of [`plan`].
pub fn wanted(
    fault: Option<&Path>,
    timeline: Option<&Path>,
    seed: u64,
) -> Result<Option<FaultPlan>, Box<dyn Error>> {
    match (fault, timeline) {
        (Some(path), _) => plan(path, seed).map(Some),
        (None, Some(_)) => Ok(Some(FaultPlan::none(seed))),
        (None, None) => Ok(None),
    }
}

/// Reads a plan from a file.
///
/// # Errors
/// It cannot be read, or a line is invalid.
pub fn plan(path: &Path, seed: u64) -> Result<FaultPlan, Box<dyn Error>> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(FaultPlan::parse(&path.display().to_string(), &text, seed)?)
}

/// A table of the faults, the frames that they hit, and their consequences.
pub fn table(plan: &FaultPlan, found: &FaultReport) -> String {
    let followed = found.timeline.followed();
    let mut text = String::from("us           what           frame                        followed\n");
    for one in followed.iter().take(TOLD) {
        text += &told(plan, found, one);
        text.push('\n');
    }
    if followed.len() > TOLD {
        text += &format!("and {} more\n", followed.len() - TOLD);
    }
    text
}

/// Writes the timeline to this file, if requested.
///
/// # Errors
/// It cannot be written, or a fault has not hit any frame.
pub fn finish(plan: &FaultPlan, found: &FaultReport, timeline: Option<&Path>) -> Result<(), Box<dyn Error>> {
    if let Some(path) = timeline {
        write(plan, found, path)?;
    }
    match plan.without_frame(&found.hits) {
        Some(line) => Err(line.into()),
        None => Ok(()),
    }
}

fn told(plan: &FaultPlan, found: &FaultReport, one: &Followed) -> String {
    let frame = &found.timeline.frames[one.frame];
    let what = match one.fault.and_then(|fault| plan.faults().nth(fault)) {
        Some((fault, _)) => fault.kind.to_string(),
        None => frame.syndrome.map_or(String::new(), name),
    };
    let after = |at: u64| at.saturating_sub(frame.at) as f64 / 1e6;
    let mut parts = Vec::new();
    if let Some((at, syndrome)) = one.nak {
        parts.push(format!("{} after {:.2} us", name(syndrome), after(at)));
    }
    if let Some(at) = one.again {
        parts.push(format!("sent again after {:.2}", after(at)));
    }
    if let Some(at) = one.covered {
        parts.push(format!("acknowledged after {:.2}", after(at)));
    }
    let words = if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") };
    let which = format!("{:?} {} for {:#x}", frame.opcode, frame.psn, frame.qp);
    format!("{:<12.3} {what:<14} {which:<28} {words}", frame.at as f64 / 1e6)
}

fn name(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(_) => "ACK".into(),
        Syndrome::RnrNak(code) => format!("RNR NAK ({code})"),
        Syndrome::Nak(NakCode::PsnSequence) => "NAK (sequence)".into(),
        Syndrome::Nak(code) => format!("NAK ({code:?})"),
        Syndrome::Reserved(byte) => format!("syndrome {byte:#x}"),
    }
}

/// Writes the timeline of `found` as JSON.
fn write(plan: &FaultPlan, found: &FaultReport, path: &Path) -> Result<(), Box<dyn Error>> {
    let ns = |ps: u64| ps as f64 / 1e3;
    let frame = |line: &FrameLine| {
        json!({
            "sent_ns": ns(line.at), "arrived_ns": line.arrived.map(ns), "from": line.from, "to": line.to,
            "opcode": format!("{:?}", line.opcode), "qp": line.qp, "psn": line.psn, "bytes": line.bytes,
            "syndrome": line.syndrome.map(name), "faults": line.faults,
        })
    };
    let faults: Vec<Value> = plan
        .faults()
        .zip(&found.hits)
        .map(|((fault, line), hits)| json!({ "do": fault.kind.to_string(), "line": line, "frames": hits }))
        .collect();
    let followed: Vec<Value> = found
        .timeline
        .followed()
        .iter()
        .map(|one| {
            json!({
                "fault": one.fault, "frame": one.frame, "nak": one.nak.map(|(_, syndrome)| name(syndrome)),
                "nak_ns": one.nak.map(|(at, _)| ns(at)), "again_ns": one.again.map(ns), "acknowledged_ns": one.covered.map(ns),
            })
        })
        .collect();
    let frames: Vec<Value> = found.timeline.frames.iter().map(frame).collect();
    let whole = json!({ "faults": faults, "followed": followed, "frames": frames });
    fs::write(path, format!("{whole}\n")).map_err(|e| format!("cannot write {}: {e}", path.display()).into())
}
