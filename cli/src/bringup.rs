//! `ironverbs bringup`: the first check of a function that is new or does not work.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use driver::harness::{self, Outcome, Outside, Plan, Progress, Report, StepReport};
use driver::pci::Sysfs;
use driver::transport::Transport;
use driver::transport::{VfioUserTransport, vfio::VfioTransport};
use node::{Node, NodeTransport};
use serde_json::{Value, json};
use stream::{RecordingTransport, file::Recorder};

use crate::say::{say, say_line};
use crate::{options, say::fail};

pub fn bringup(command: &options::Bringup) -> ExitCode {
    let plan = match plan(command) {
        Ok(plan) => plan,
        Err(why) => return fail(1, why),
    };
    // Before the function is opened, which may reset it.
    let recorder = match command.record.as_deref().map(Recorder::create).transpose() {
        Ok(recorder) => recorder,
        Err(why) => return fail(1, why),
    };
    let (target, mut transport) = match open(command) {
        Ok(opened) => opened,
        Err(why) => return fail(1, why),
    };
    if let Some(recorder) = recorder {
        let function = command.target.function.unwrap_or(0);
        transport = Arc::new(RecordingTransport::new(transport, function, recorder));
    }
    say_line!("bring-up of {target}{}", if command.write { "" } else { ", reading only" });
    if command.target.vfio.is_some() {
        say_line!("kernel VFIO has reset the function when it was opened, and will when it is closed");
    }
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

fn plan(command: &options::Bringup) -> Result<Plan, String> {
    let outside = match (command.address, command.peer) {
        (Some(own), Some(peer)) if own.is_ipv4() == peer.is_ipv4() => Some(Outside { own, peer }),
        (None, None) => None,
        (own, peer) => {
            let word = |ip: Option<IpAddr>| ip.map_or("none".into(), |ip| ip.to_string());
            let (own, peer) = (word(own), word(peer));
            return Err(format!(
                "expected --address and --peer of one family, found {own} and {peer}: our own address and that of a host on the \
                 same network"
            ));
        }
    };
    let plan = Plan { write: command.write, outside, ..Plan::default() };
    Ok(match command.timeout {
        Some(seconds) => plan.within(Duration::from_secs(seconds)),
        None => plan,
    })
}

fn open(command: &options::Bringup) -> Result<(String, Arc<dyn Transport>), String> {
    if let Some(address) = command.target.vfio {
        // Opening the function resets it, which would break its users.
        let device = Sysfs::default().device(address).map_err(|e| e.to_string())?;
        if !command.force {
            device.check_unused().map_err(|e| e.to_string())?;
        }
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
    Ok((format!("iron{fid} of the adapter in {}", node.dir().display()), Arc::new(transport)))
}

/// Progress output: a line for each step, with the values read if it failed.
fn show(progress: Progress<'_>) {
    let live = stdout().is_terminal();
    match progress {
        Progress::Begins(step) if live => {
            say!("   ..   {} ({})", step.name, step.source);
            // A failed write to the screen does not affect the result.
            let _ = stdout().flush();
        }
        Progress::Begins(_) => {}
        // Skipped steps are counted at the end, and listed in the report.
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
        write(
            file,
            format!("bring-up of {target}\n{}{report}{}", reset_at_open(command), beside_the_model(report)),
        )?;
    }
    if let Some(file) = &command.json {
        let vfio = command.target.vfio.is_some();
        write(file, format!("{:#}\n", as_json(target, vfio, report)))?;
    }
    Ok(())
}

fn reset_at_open(command: &options::Bringup) -> &'static str {
    match command.target.vfio {
        Some(_) => "kernel VFIO resets the function when it is opened and closed\n",
        None => "",
    }
}

/// The same fields as a driver reads them on the model. Each line contains a page, a field and its value.
const MODEL: &str = include_str!("model.txt");

/// The model's value of a field.
fn of_the_model<'a>(model: &'a BTreeMap<(&'a str, &'a str), &'a str>, page: &str, field: &str) -> &'a str {
    model.get(&(page, field)).copied().unwrap_or("-")
}

fn model() -> BTreeMap<(&'static str, &'static str), &'static str> {
    let line = |line: &'static str| {
        let mut words = line.split('\t');
        Some(((words.next()?, words.next()?), words.next()?))
    };
    MODEL.lines().filter_map(line).collect()
}

/// The structures that were read entirely, with the model's value next to each field and a star where they differ.
fn beside_the_model(report: &Report) -> String {
    let model = model();
    let mut text = String::new();
    for page in report.pages() {
        let _ = writeln!(text, "\n{:42} {:>24} {:>24}", page.name, "found", "model");
        for (field, found) in &page.fields {
            let expected = of_the_model(&model, &page.name, field);
            let mark = if found == expected { " " } else { "*" };
            let _ = writeln!(text, "{mark} {field:40} {found:>24} {expected:>24}");
        }
        let _ = writeln!(text, "  bytes {}", hex(&page.bytes));
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_json(target: &str, reset_at_open: bool, report: &Report) -> Value {
    let model = model();
    let pages = report.pages().map(|page| {
        let fields = page.fields.iter().map(|(field, found)| {
            json!({ "name": field, "found": found, "model": of_the_model(&model, &page.name, field) })
        });
        json!({ "name": page.name, "fields": fields.collect::<Vec<_>>(), "bytes": hex(&page.bytes) })
    });
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
        "version": env!("IRONVERBS_VERSION"),
        "reset_at_open": reset_at_open,
        "pages": pages.collect::<Vec<_>>(),
        "passed": report.failure().is_none(),
        "failed_at": report.failure().map(|step| step.name.name),
        "steps": steps.collect::<Vec<_>>(),
    })
}
