//! `ironverbs bringup`: what to run first on a function that is new, or that does not work.

use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use driver::harness::{self, Outcome, Plan, Progress, Report, StepReport};
use driver::transport::Transport;
use driver::transport::{VfioUserTransport, vfio::VfioTransport};
use node::{Node, NodeTransport};
use serde_json::{Value, json};

use crate::say::{say, say_line};
use crate::{options, say::fail};

pub fn bringup(command: &options::Bringup) -> ExitCode {
    let (target, transport) = match open(command) {
        Ok(opened) => opened,
        Err(why) => return fail(1, why),
    };
    say_line!("bring-up of {target}{}", if command.write { "" } else { ", reading only" });
    let plan = Plan { write: command.write, ..Plan::default() };
    let plan = match command.timeout {
        Some(seconds) => plan.within(Duration::from_secs(seconds)),
        None => plan,
    };
    let report = harness::run(&transport, &plan, &mut show);
    if let Err(why) = write_reports(command, &target, &report) {
        return fail(1, why);
    }
    let skipped = report.steps.iter().filter(|step| matches!(step.outcome, Outcome::Skipped(_))).count();
    if skipped != 0 {
        say_line!("{skipped} steps not tried{}", if command.write { "" } else { "; most need --write" });
    }
    match report.failure() {
        Some(StepReport { name, outcome: Outcome::Failed(why), .. }) => {
            fail(1, format!("bring-up of {target} failed at {:?}: {why}", name.name))
        }
        _ => {
            let passed = report.steps.iter().filter(|step| step.outcome == Outcome::Passed).count();
            say_line!("{passed} of {} steps passed, none failed", report.steps.len());
            ExitCode::SUCCESS
        }
    }
}

fn open(command: &options::Bringup) -> Result<(String, Arc<dyn Transport>), String> {
    if let Some(address) = command.target.bdf {
        let transport = VfioTransport::open(address).map_err(|e| e.to_string())?;
        return Ok((address.to_string(), transport));
    }
    if let Some(socket) = &command.target.vfio_user {
        let path = socket.display().to_string();
        let transport = VfioUserTransport::open(socket).map_err(|e| format!("cannot reach {path}: {e}"))?;
        return Ok((path, transport));
    }
    let fid = command.target.function.unwrap_or(0);
    let node = Node::open(&command.node.path()).map_err(|e| e.to_string())?;
    let transport = NodeTransport::open(&node, fid).map_err(|e| e.to_string())?;
    Ok((format!("iron{fid} of the node in {}", node.dir().display()), Arc::new(transport)))
}

/// The screen: a line for each step, and what was read where it failed.
fn show(progress: Progress<'_>) {
    let live = stdout().is_terminal();
    match progress {
        Progress::Begins(step) if live => {
            say!("   ..   {} ({})", step.name, step.source);
            // A screen that cannot be written to does not change what was found.
            let _ = stdout().flush();
        }
        Progress::Begins(_) => {}
        // They are counted in the end, and written down in the report.
        Progress::Ended(StepReport { outcome: Outcome::Skipped(_), .. }) => {}
        Progress::Ended(step) => {
            if live {
                say!("\r\x1b[K");
            }
            say!("{step}");
        }
    }
}

fn write_reports(command: &options::Bringup, target: &str, report: &Report) -> Result<(), String> {
    let write = |file: &Path, text: String| {
        fs::write(file, text).map_err(|e| format!("cannot write the report to {}: {e}", file.display()))
    };
    if let Some(file) = &command.report {
        write(file, format!("bring-up of {target}\n{report}"))?;
    }
    if let Some(file) = &command.json {
        write(file, format!("{:#}\n", as_json(target, report)))?;
    }
    Ok(())
}

fn as_json(target: &str, report: &Report) -> Value {
    let steps = report.steps.iter().map(|step| {
        let (outcome, why) = match &step.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Failed(why) => ("failed", Some(why)),
            Outcome::Skipped(why) => ("skipped", Some(why)),
        };
        let readings = step.readings.iter().map(
            |reading| json!({ "what": reading.what, "found": reading.found, "expected": reading.expected }),
        );
        json!({
            "name": step.name.name,
            "source": step.name.source,
            "writes": step.name.writes,
            "outcome": outcome,
            "why": why,
            "microseconds": step.took.as_micros() as u64,
            "readings": readings.collect::<Vec<_>>(),
        })
    });
    json!({
        "target": target,
        "passed": report.failure().is_none(),
        "failed_at": report.failure().map(|step| step.name.name),
        "steps": steps.collect::<Vec<_>>(),
    })
}
