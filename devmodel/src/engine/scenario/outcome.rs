//! The outcome of a scenario, and its outputs in the form of HPCC's simulator.

use super::Flow;
use crate::engine::{
    network::{Pause, PortLoad},
    sched::Ps,
};
use std::fmt::Write as _;

/// The outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowOutcome {
    /// It.
    pub flow: Flow,
    /// When its program saw that all was done; not if it was not.
    pub end: Option<Ps>,
    /// It failed: its queue pair is in error.
    pub failed: bool,
    /// The time that it would have taken on links that nobody else used, in picoseconds: there and back, and its bytes with their headers
    /// at the slowest link.
    pub alone: Ps,
}

impl FlowOutcome {
    /// How long it took, in picoseconds, if it was done.
    pub fn took(&self) -> Option<Ps> {
        self.end.map(|end| end - self.flow.start)
    }
}

/// A look at queues and rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// When, in picoseconds.
    pub at: Ps,
    /// Bytes that wait at each port of each node, in the order of [`Outcome::ports`].
    pub queued: Vec<u64>,
    /// Bytes of payload that arrived from each host until then.
    pub came: Vec<u64>,
}

/// The outcome of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its flows, in their order.
    pub flows: Vec<FlowOutcome>,
    /// True if each node is a switch.
    pub switches: Vec<bool>,
    /// The nodes that are hosts.
    pub hosts: Vec<usize>,
    /// The load of each port: node, port, and load.
    pub ports: Vec<(usize, usize, PortLoad)>,
    /// Pauses, and their ends.
    pub pauses: Vec<Pause>,
    /// Looks at queues and rates.
    pub samples: Vec<Sample>,
    /// Bytes of payload that arrived from each host.
    pub came: Vec<u64>,
    /// Frames that the cards sent, and how many of them were acknowledgements.
    pub frames: [u64; 2],
    /// Notifications of congestion that cards sent.
    pub notifications: u64,
    /// Packets that were asked for again, and timeouts.
    pub sequence_errors: u64,
    /// See [`sequence_errors`](Self::sequence_errors).
    pub timeouts: u64,
    /// When it ended, in picoseconds.
    pub duration: Ps,
}

/// Picoseconds in a nanosecond.
const NS: u64 = 1000;

impl Outcome {
    /// Packets for which a switch had no room.
    pub fn dropped(&self) -> u64 {
        self.ports.iter().map(|(.., load)| load.dropped).sum()
    }

    /// Packets that were marked.
    pub fn marked(&self) -> u64 {
        self.ports.iter().map(|(.., load)| load.marked).sum()
    }

    /// A line for each flow that was done, in the order of their ends: the hosts' addresses, ports, bytes, when it began, how long it took and
    /// would have taken alone, in nanoseconds.
    pub fn fct(&self) -> String {
        let mut done: Vec<_> = self.flows.iter().enumerate().filter(|(_, flow)| flow.end.is_some()).collect();
        done.sort_by_key(|(_, flow)| flow.end);
        let mut text = String::new();
        for (number, FlowOutcome { flow, alone, .. }) in &done {
            let took = self.flows[*number].took().unwrap_or(0);
            let _ = writeln!(
                text,
                "{:08x} {:08x} {} {} {} {} {} {}",
                address(flow.from),
                address(flow.to),
                10_000 + number,
                flow.port,
                flow.bytes,
                flow.start / NS,
                took / NS,
                alone / NS
            );
        }
        text
    }

    /// A line for each pause and its end: nanoseconds, node, 1 if that is a switch, its port from 1, 1 for a pause.
    pub fn pfc(&self) -> String {
        let line = |pause: &Pause| {
            let is_switch = u8::from(self.switches[pause.node]);
            format!(
                "{} {} {is_switch} {} {}\n",
                pause.at / NS,
                pause.node,
                pause.port + 1,
                u8::from(pause.on)
            )
        };
        self.pauses.iter().map(line).collect()
    }

    /// Of each port of a switch a line: node, port from 1, and in how many samples 0, 1, 2 and so on kilobytes waited.
    pub fn qlen(&self) -> String {
        let Some(last) = self.samples.last() else { return String::new() };
        let mut text = format!("time: {}\n", last.at / NS);
        for (number, (node, port, _)) in
            self.ports.iter().enumerate().filter(|(_, (node, ..))| self.switches[*node])
        {
            let mut counts = Vec::new();
            for sample in &self.samples {
                let kb = (sample.queued[number] / 1000) as usize;
                counts.resize(counts.len().max(kb + 1), 0u64);
                counts[kb] += 1;
            }
            let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
            let _ = writeln!(text, "{node} {} {}", port + 1, counts.join(" "));
        }
        text
    }
}

/// The address of a node, as HPCC's simulator gives it.
fn address(node: usize) -> u32 {
    0x0b00_0001 + ((node as u32 / 256) << 16) + ((node as u32 % 256) << 8)
}
