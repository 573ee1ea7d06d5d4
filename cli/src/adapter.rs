//! `ironverbs adapter`: creation, state and deletion of adapters, and actions on their wire.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use devmodel::{state::Counters, strict::Strict};
use nix::unistd::Group;
use node::devices::function;
use node::naming::Name;
use node::{
    CaptureThread, Captured, FaultThread, FunctionStatus, Node, NodeError, NodeOptions, NodeStatus, Observer,
    PartyStatus, Signals, dir,
};
use serde_json::{Map, Value, json};

use crate::say::{say, say_line};
use crate::{faults, options, place, say::fail, timed, watch};

/// Interval of checks whether a capture has ended by itself.
const LOOK: Duration = Duration::from_millis(200);

/// Counters of a function that are shown if they are not 0.
const COUNTERS: [(Counters, &str); 28] = [
    (Counters::TxPackets, "tx_packets"),
    (Counters::TxBytes, "tx_bytes"),
    (Counters::RxPackets, "rx_packets"),
    (Counters::RxBytes, "rx_bytes"),
    (Counters::RxReadRequests, "rx_read_requests"),
    (Counters::RxWriteRequests, "rx_write_requests"),
    (Counters::RxAtomicRequests, "rx_atomic_requests"),
    (Counters::RxIcrcErrors, "rx_icrc_errors"),
    (Counters::RxDroppedQp, "rx_dropped_qp"),
    (Counters::RxDroppedPkey, "rx_dropped_pkey"),
    (Counters::RxDroppedQkey, "rx_dropped_qkey"),
    (Counters::RxMalformed, "rx_malformed"),
    (Counters::RxRingFull, "rx_ring_full"),
    (Counters::OutOfSequence, "out_of_sequence"),
    (Counters::DuplicateRequest, "duplicate_request"),
    (Counters::ImpliedNakSeqErr, "implied_nak_seq_err"),
    (Counters::PacketSeqErr, "packet_seq_err"),
    (Counters::RnrNakRetryErr, "rnr_nak_retry_err"),
    (Counters::LocalAckTimeoutErr, "local_ack_timeout_err"),
    (Counters::OutOfBuffer, "out_of_buffer"),
    (Counters::RespLocalLengthError, "resp_local_length_error"),
    (Counters::RespCqeError, "resp_cqe_error"),
    (Counters::ReqCqeError, "req_cqe_error"),
    (Counters::ReqRemoteInvalidRequest, "req_remote_invalid_request"),
    (Counters::ReqRemoteAccessErrors, "req_remote_access_errors"),
    (Counters::RespRemoteAccessErrors, "resp_remote_access_errors"),
    (Counters::ReqRnrRetriesExceeded, "req_rnr_retries_exceeded"),
    (Counters::ReqTransportRetriesExceeded, "req_transport_retries_exceeded"),
];

pub fn adapter(command: &options::Adapter) -> ExitCode {
    match run(command) {
        Ok(text) => {
            say!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => fail(1, e),
    }
}

fn run(command: &options::Adapter) -> Result<String, NodeError> {
    match command {
        options::Adapter::Create(create) => {
            let failed = |why: String| NodeError::system("create the adapter")(std::io::Error::other(why));
            create.identity.without_plan().map_err(failed)?;
            let options = NodeOptions { vfs: create.vfs, ..NodeOptions::default() };
            if let Some(group) = &create.group {
                dir::share(&create.adapter.path(), group_number(group)?)?;
            }
            let options = create.identity.over(create.seen.over(options));
            let node = place::open(&create.adapter.path(), &options)?;
            let name = node.devices().first().map(|pf| pf.name.clone()).unwrap_or_default();
            Ok(format!("adapter in {}: {name} and {} VFs\n", node.dir().display(), node.vfs()))
        }
        options::Adapter::Address(address) => {
            let node = Node::open(&address.node.path())?;
            let devices = node.devices();
            let fid = function(&address.device, &devices).ok_or_else(|| NodeError::NoName {
                found: address.device.clone(),
                names: [devices.first(), devices.last()]
                    .map(|device| device.map(|device| device.name.clone()).unwrap_or_default()),
            })?;
            node.set_address(fid, address.address)?;
            let now = node.devices().into_iter().find(|device| device.fid == fid);
            Ok(now.map(|device| format!("{}: {}\n", device.name, device.ip)).unwrap_or_default())
        }
        options::Adapter::Capture(capture) => captured(capture),
        options::Adapter::Fault(faults) => inject(faults),
        options::Adapter::Conduct { node, rules, fault } => {
            let node = Node::open(&node.path())?;
            timed::conduct(&node, rules, fault.as_deref())
        }
        options::Adapter::Status { adapter, output, watch } if watch.watch.is_some() => {
            watch::watch(&adapter.path(), output.is_json(), watch)
        }
        options::Adapter::Status { adapter, output, .. } => {
            let status = Observer::open(&adapter.path())?.status();
            Ok(if output.is_json() { format!("{:#}\n", json(&status)) } else { in_words(&status) })
        }
        options::Adapter::Delete(delete) => {
            let dir = delete.adapter.path();
            let was_there = Node::reset(&dir, delete.force)?;
            let what = if was_there { "removed" } else { "there was none" };
            Ok(format!("adapter in {}: {what}\n", dir.display()))
        }
    }
}

/// The ID of a group, by name or number.
fn group_number(group: &str) -> Result<u32, NodeError> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let found = Group::from_name(group).map_err(|e| NodeError::system("look up the group")(e.into()))?;
    let missing =
        || std::io::Error::new(std::io::ErrorKind::NotFound, format!("there is none called {group:?}"));
    found.map(|group| group.gid.as_raw()).ok_or_else(|| NodeError::system("look up the group")(missing()))
}

fn captured(capture: &options::Capture) -> Result<String, NodeError> {
    let signals = Signals::hold().map_err(NodeError::system("hold signals back"))?;
    let node = Node::open(&capture.node.path())?;
    let failed = || NodeError::system(format!("write {}", capture.file.display()));
    let open = capture.file.clone();
    let thread =
        CaptureThread::start(&node, move || std::fs::File::create(open).map(std::io::BufWriter::new))?;
    // A full disk ends it, too.
    wait(&signals, capture.seconds, || !thread.has_ended());
    let Captured { frames, lost } = thread.finish().map_err(failed())?;
    Ok(format!("{}: {frames} frames, {lost} lost\n", capture.file.display()))
}

/// Waits for a signal, for `seconds`, or until `goes_on` returns false.
fn wait(signals: &Signals, seconds: Option<u64>, goes_on: impl Fn() -> bool) {
    let mut left = seconds.map(Duration::from_secs);
    while goes_on() && left != Some(Duration::ZERO) {
        let turn = left.map_or(LOOK, |left| left.min(LOOK));
        if signals.wait_for(turn).is_some() {
            break;
        }
        left = left.map(|left| left - turn);
    }
}

fn inject(options: &options::WireFaults) -> Result<String, NodeError> {
    let failed = |why: String| NodeError::system("apply the plan of faults")(std::io::Error::other(why));
    let signals = Signals::hold().map_err(NodeError::system("hold signals back"))?;
    let plan = faults::plan(&options.plan, options.seed).map_err(|e| failed(e.to_string()))?;
    let node = Node::open(&options.node.path())?;
    let thread = FaultThread::start(&node, plan.clone())?;
    wait(&signals, options.seconds, || true);
    let (found, lost) = thread.finish().map_err(|e| failed(e.to_string()))?;
    say!("{}", faults::table(&plan, &found));
    if lost > 0 {
        say_line!("{lost} frames found no room and were lost");
    }
    faults::finish(&plan, &found, options.timeline.as_deref()).map_err(|e| failed(e.to_string()))?;
    Ok(String::new())
}

fn in_words(status: &NodeStatus) -> String {
    let mut text = String::new();
    let kib = |bytes: u64| bytes >> 10;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "adapter in {}: id {}, {}, {} and {} VFs, {} KiB of memory ({} KiB of it drivers' and lent by programs)",
        status.dir.display(),
        status.node_id,
        status.link_layer,
        status.naming.name,
        status.vfs,
        kib(status.memory),
        kib(status.driver_memory)
    );
    if !status.faults.is_none() {
        let _ = writeln!(text, "faults on its wire: {}", status.faults);
    }
    if status.strict != Strict::default() {
        let _ = writeln!(text, "strict as a card: {}", status.strict);
    }
    for (what, pid) in ["uplink held", "wire captured"].iter().zip(status.outlets) {
        if let Some(pid) = pid {
            let _ = writeln!(text, "{what} by process {pid}");
        }
    }
    if status.uplink_lost > 0 {
        let _ = writeln!(text, "frames that found no room in the uplink: {}", status.uplink_lost);
    }
    let _ = writeln!(text, "programs that died on it and were cleaned up after: {}", status.reaped);
    for party in &status.parties {
        let _ = writeln!(text, "{}", party_line(party, &status.naming.name));
    }
    for function in &status.functions {
        if let Some(line) = function_line(function, &status.naming.name) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// The line of a program.
fn party_line(party: &PartyStatus, name: &Name) -> String {
    let open: Vec<String> = party.functions.iter().map(|fid| name.of(*fid)).collect();
    let open = if open.is_empty() { "nothing".into() } else { open.join(" ") };
    let PartyStatus { pid, wakes, ticks, .. } = party;
    match party.lives {
        true => {
            format!(
                "program {pid}: has {open} open; its thread was woken {wakes} times and ran {ticks} timers"
            )
        }
        false => format!("dead program {pid}: had {open} open; the next program cleans up after it"),
    }
}

/// The status as JSON: memory in bytes, every function and each of its counters.
pub fn json(status: &NodeStatus) -> Value {
    let ([uplink, capture], name) = (status.outlets, &status.naming.name);
    let programs = status.parties.iter().map(|party| {
        let functions: Vec<String> = party.functions.iter().map(|fid| name.of(*fid)).collect();
        json!({
            "party": party.party,
            "pid": party.pid,
            "lives": party.lives,
            "functions": functions,
            "wakes": party.wakes,
            "timers": party.ticks,
        })
    });
    let functions = status.functions.iter().map(|f| {
        let objects: Map<String, Value> =
            f.objects.iter().map(|(kind, n)| ((*kind).into(), json!(n))).collect();
        let counter =
            |(counter, name): &(Counters, &str)| ((*name).into(), json!(f.counters[*counter as usize]));
        let counters: Map<String, Value> = COUNTERS.iter().map(counter).collect();
        json!({
            "device": name.of(f.fid),
            "up": f.up,
            "served": f.served,
            "address": f.address.map(|address| address.to_string()),
            "parties": f.parties,
            "objects": objects,
            "counters": counters,
        })
    });
    json!({
        "directory": status.dir.display().to_string(),
        "node_id": status.node_id,
        "link_layer": status.link_layer.to_string(),
        "vfs": status.vfs,
        "pci": status.naming.bus.to_string(),
        "numa": status.naming.numa,
        "memory": status.memory,
        "driver_memory": status.driver_memory,
        "faults": (!status.faults.is_none()).then(|| status.faults.to_string()),
        "strict": (status.strict != Strict::default()).then(|| status.strict.to_string()),
        "uplink_pid": uplink,
        "uplink_lost": status.uplink_lost,
        "capture_pid": capture,
        "reaped": status.reaped,
        "programs": programs.collect::<Vec<_>>(),
        "functions": functions.collect::<Vec<_>>(),
    })
}

/// Lists a function's counters that are not 0.
pub fn counted(counters: &[u64; devmodel::state::COUNTERS]) -> Vec<String> {
    COUNTERS
        .iter()
        .map(|(counter, name)| (counters[*counter as usize], name))
        .filter(|(value, _)| *value != 0)
        .map(|(value, name)| format!("{name} {value}"))
        .collect()
}

/// The line of a function that is or was in use.
fn function_line(f: &FunctionStatus, name: &Name) -> Option<String> {
    let objects: Vec<String> = f.objects.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let counters = counted(&f.counters);
    if !f.up && counters.is_empty() && f.parties.is_empty() && f.address.is_none() {
        return None;
    }
    let state = if f.up { "up" } else { "down" };
    let mut parts = vec![format!("{}: {state}", name.of(f.fid))];
    parts.extend(f.served.then(|| "served".into()));
    parts.extend(f.address.map(|address| format!("address {address}")));
    parts.extend([objects, counters].into_iter().filter(|p| !p.is_empty()).map(|p| p.join(", ")));
    Some(parts.join("; "))
}
