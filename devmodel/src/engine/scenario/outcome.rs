//! The outcome of a scenario, and its outputs in the formats of HPCC's simulator.

use super::Flow;
use crate::engine::{
    network::{Pause, PortLoad},
    sched::Ps,
};
use std::fmt::Write as _;

/// The outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowOutcome {
    /// The flow.
    pub flow: Flow,
    /// Time at which its program saw the last completion; `None` if it was not completed.
    pub end: Option<Ps>,
    /// It failed: its queue pair is in error.
    pub failed: bool,
    /// Time that it would take on otherwise unused links, in picoseconds: the round trip, and its bytes with headers at the slowest link.
    pub alone: Ps,
}

impl FlowOutcome {
    /// Completion time in picoseconds, if it was completed.
    pub fn took(&self) -> Option<Ps> {
        self.end.map(|end| end - self.flow.start)
    }
}

/// A sample of queues and rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Time, in picoseconds.
    pub at: Ps,
    /// Bytes queued at each port of each node, in the order of [`Outcome::ports`].
    pub queued: Vec<u64>,
    /// Bytes of payload that have arrived from each host.
    pub came: Vec<u64>,
}

/// The outcome of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The flows, in order.
    pub flows: Vec<FlowOutcome>,
    /// For each node, true if it is a switch.
    pub switches: Vec<bool>,
    /// The nodes that are hosts.
    pub hosts: Vec<usize>,
    /// The load of each port: node, port, and load.
    pub ports: Vec<(usize, usize, PortLoad)>,
    /// Starts and ends of pauses.
    pub pauses: Vec<Pause>,
    /// Samples of queues and rates.
    pub samples: Vec<Sample>,
    /// Bytes of payload that arrived from each host.
    pub came: Vec<u64>,
    /// Frames that the cards sent, and the number of acknowledgements among them.
    pub frames: [u64; 2],
    /// Congestion notification packets that cards sent.
    pub notifications: u64,
    /// Packets requested again after a sequence error.
    pub sequence_errors: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Duration of the run, in picoseconds.
    pub duration: Ps,
}

/// Picoseconds per nanosecond.
const NS: u64 = 1000;

impl Outcome {
    /// Packets dropped by switches for lack of buffer space.
    pub fn dropped(&self) -> u64 {
        self.ports.iter().map(|(.., load)| load.dropped).sum()
    }

    /// Packets that were marked.
    pub fn marked(&self) -> u64 {
        self.ports.iter().map(|(.., load)| load.marked).sum()
    }

    /// One line per completed flow, in order of completion: the hosts' addresses, ports, bytes, start, duration, and duration
    /// on otherwise unused links, in nanoseconds.
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

    /// One line per start and end of a pause: nanoseconds, node, 1 for a switch, port from 1, 1 for a pause.
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

    /// One line per switch port: node, port from 1, and the number of samples with 0, 1, 2, ... kilobytes queued.
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

/// The address of a node in HPCC's simulator.
fn address(node: usize) -> u32 {
    0x0b00_0001 + ((node as u32 / 256) << 16) + ((node as u32 % 256) << 8)
}
