//! `ironverbs adapter status --watch`: repeatedly shows the activity of a node's functions.

use crate::{adapter, options::Watch, say::say};
use devmodel::state::{COUNTERS, Counters};
use node::{FunctionStatus, NodeError, NodeStatus, Observer, Signals};
use std::{
    fmt::Write,
    io::{IsTerminal, stdout},
    path::Path,
    time::{Duration, Instant},
};

/// Error counters: the columns of a table, and the counters that each sums up.
const TROUBLE: [(&str, &[Counters]); 4] = [
    ("resent/s", &[Counters::PacketSeqErr, Counters::LocalAckTimeoutErr, Counters::ImpliedNakSeqErr]),
    ("rnr/s", &[Counters::RnrNakRetryErr]),
    ("cnp/s", &[Counters::NpCnpSent, Counters::RpCnpHandled]),
    (
        "dropped/s",
        &[Counters::RxRingFull, Counters::RxIcrcErrors, Counters::RxDroppedQp, Counters::OutOfBuffer],
    ),
];

/// The functions' counters at a point in time, for computing rates.
struct Look {
    at: Instant,
    counters: Vec<(u8, [u64; COUNTERS])>,
}

/// Shows the node in `dir` until a signal arrives, or as often as `options` specify. With `json`, prints one line each time.
pub fn watch(dir: &Path, json: bool, options: &Watch) -> Result<String, NodeError> {
    let every = options.watch.unwrap_or(1.0);
    let every =
        Duration::try_from_secs_f64(every).unwrap_or(Duration::from_secs(1)).max(Duration::from_millis(10));
    let signals = Signals::hold().map_err(NodeError::system("hold signals back"))?;
    let (mut before, mut left): (Option<Look>, _) = (None, options.times);
    loop {
        let (status, at) = (Observer::open(dir)?.status(), Instant::now());
        if json {
            say!("{}\n", adapter::json(&status));
        } else {
            // On a terminal, the table is updated in place.
            let clear = if stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
            say!("{clear}{}", table(&status, before.as_ref(), at));
        }
        let counters = status.functions.iter().map(|function| (function.fid, function.counters)).collect();
        before = Some(Look { at, counters });
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) || signals.wait_for(every).is_some() {
            return Ok(String::new());
        }
    }
}

fn table(status: &NodeStatus, before: Option<&Look>, at: Instant) -> String {
    let mut text = format!("adapter in {}: {} programs\n", status.dir.display(), status.parties.len());
    let _ = write!(
        text,
        "{:<12} {:>8} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "", "programs", "QPs", "tx Gb/s", "rx Gb/s", "tx kp/s", "rx kp/s"
    );
    for (name, _) in TROUBLE {
        let _ = write!(text, " {name:>10}");
    }
    text.push('\n');
    for function in status.functions.iter().filter(|function| function.up || !function.parties.is_empty()) {
        text += &line(status, function, before, at);
    }
    text
}

fn line(status: &NodeStatus, function: &FunctionStatus, before: Option<&Look>, at: Instant) -> String {
    let then = before.and_then(|look| {
        let (_, counters) = look.counters.iter().find(|(fid, _)| *fid == function.fid)?;
        Some((counters, (at - look.at).as_secs_f64().max(1e-6)))
    });
    let rate = |counters: &[Counters]| match then {
        // A function that was reset starts from zero.
        Some((then, seconds)) => {
            let of = |counters: &Counters| {
                function.counters[*counters as usize].saturating_sub(then[*counters as usize]) as f64
            };
            counters.iter().map(of).sum::<f64>() / seconds
        }
        None => 0.0,
    };
    let qps = function.objects.iter().find(|(kind, _)| *kind == "qp").map_or(0, |(_, count)| *count);
    let mut text = format!(
        "{:<12} {:>8} {qps:>8} {:>10.2} {:>10.2} {:>10.1} {:>10.1}",
        status.naming.name.of(function.fid),
        function.parties.len(),
        rate(&[Counters::TxBytes]) * 8e-9,
        rate(&[Counters::RxBytes]) * 8e-9,
        rate(&[Counters::TxPackets]) * 1e-3,
        rate(&[Counters::RxPackets]) * 1e-3
    );
    for (_, counters) in TROUBLE {
        let _ = write!(text, " {:>10.0}", rate(counters));
    }
    text.push('\n');
    text
}
