//! perftest's patterns in virtual time: prints the figures that its tools would print for the card, slot, wire and hosts of a
//! [profile](super::timing).
//!
//! Programs with queue pairs on functions of two cards do what `ib_send_lat`, `ib_write_bw` and the others do, without a driver. The
//! figures are the same at every run with the same seed.

mod bench;
mod figures;
pub mod rows;
#[cfg(test)]
mod tests;

pub use figures::{Bandwidth, Latency};

use super::{
    card::{Load, Station},
    faults::{FaultPlan, FaultReport},
    mirror::TakeFrame,
    rig::Sizes,
    sched::Ps,
    spans::Timeline,
    timing::TimingProfile,
};
use crate::state::COUNTERS;

/// Maximum bytes of a work request besides its inline data: control, remote address, and the length of the data.
const LARGEST_HEADERS: u32 = 36;

/// The operation that carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA READs.
    Read,
    /// RDMA WRITEs.
    Write,
    /// SENDs.
    Send,
    /// FETCH_ADDs of 8 bytes.
    FetchAdd,
    /// CMP_SWAPs of 8 bytes.
    CompareSwap,
}

impl Operation {
    /// True if its messages have 8 bytes and no others.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// One message at a time. For READs and atomics the round trip; WRITEs and SENDs are answered, and the figure is half the round trip.
    Latency,
    /// As many outstanding as the plan's depth.
    Bandwidth,
}

/// A run: perftest's options.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Operation of each message.
    pub operation: Operation,
    /// Selects perftest's `_lat` or `_bw` program.
    pub measure: Measure,
    /// Bytes of a message, 1 to [`Plan::MOST_BYTES`].
    pub bytes: u32,
    /// Messages.
    pub iters: u32,
    /// Outstanding messages per queue pair (`-t`).
    pub depth: u32,
    /// Interval in messages between those that request a completion (`-Q`); at most the depth.
    pub moderation: u32,
    /// Queue pairs of each program (`-q`).
    pub qps: u32,
    /// Functions of each card that have a program, 1 or 2.
    pub functions: u32,
    /// Maximum payload of a packet in bytes (`-m`); `None` uses the profile's.
    pub mtu: Option<u16>,
    /// Size of the longest message that is sent inline (`-I`), at most [`Plan::MOST_INLINE`].
    pub inline: u32,
    /// Seed of the variation of program times: the same seed gives the same figures.
    pub seed: u64,
    /// All costs.
    pub profile: TimingProfile,
}

impl Plan {
    /// Maximum bytes of a message.
    pub const MOST_BYTES: u32 = (Sizes::MEASURE.data / 2) as u32;
    /// Maximum bytes of a message in its work request.
    pub const MOST_INLINE: u32 = 828;
    /// Maximum outstanding messages.
    pub const MOST_DEPTH: u32 = 256;
    /// Maximum queue pairs of a program.
    pub const MOST_QPS: u32 = 64;

    /// perftest's defaults.
    pub fn new(operation: Operation, measure: Measure, profile: TimingProfile) -> Self {
        let latency = measure == Measure::Latency;
        Self {
            operation,
            measure,
            bytes: if operation.is_atomic() {
                8
            } else if latency {
                2
            } else {
                65536
            },
            iters: if latency { 1000 } else { 5000 },
            depth: 128,
            moderation: 100,
            qps: 1,
            functions: 1,
            mtu: None,
            inline: if latency { 236 } else { 0 },
            seed: 1,
            profile,
        }
    }

    /// Rejects parameters out of range.
    fn check(&self) -> Result<(), SimError> {
        let within = |what, found: u32, least: u32, most: u32| match (least..=most).contains(&found) {
            true => Ok(()),
            false => Err(SimError::Range { what, found, least, most }),
        };
        match self.operation.is_atomic() {
            true => within("message size", self.bytes, 8, 8)?,
            false => within("message size", self.bytes, 1, Self::MOST_BYTES)?,
        }
        within("iterations", self.iters, 2, 10_000_000)?;
        within("moderation", self.moderation, 1, u32::MAX)?;
        within("queue pairs", self.qps, 1, Self::MOST_QPS)?;
        within("functions", self.functions, 1, 2)?;
        within("inline bytes", self.inline, 0, Self::MOST_INLINE)?;
        // A long work request occupies several blocks.
        let inline = if self.bytes <= self.inline { self.bytes } else { 0 };
        let blocks = (LARGEST_HEADERS + inline).div_ceil(64);
        within("depth", self.depth, 1, Self::MOST_DEPTH.min(Sizes::MEASURE.sq_blocks() / blocks))?;
        if self.measure == Measure::Latency && self.qps * self.functions != 1 {
            return Err(SimError::One);
        }
        match self.mtu() {
            256 | 512 | 1024 | 2048 | 4096 => Ok(()),
            other => Err(SimError::Mtu(other)),
        }
    }

    fn mtu(&self) -> u16 {
        self.mtu.unwrap_or(self.profile.wire.mtu)
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figures {
    /// Result of [`Measure::Latency`].
    Latency(Latency),
    /// Result of [`Measure::Bandwidth`].
    Bandwidth(Bandwidth),
}

/// A line of perftest's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages.
    pub iters: u32,
    /// The figures.
    pub figures: Figures,
    /// For [`Measure::Bandwidth`], the figures of each program.
    pub programs: Vec<Bandwidth>,
    /// Each latency, or each time of a completion, in picoseconds, in order.
    pub samples: Vec<Ps>,
    /// Frames that were sent, and how many of them were acknowledgements.
    pub frames: [u64; 2],
    /// Virtual time that the run took, in picoseconds.
    pub duration: Ps,
    /// The loads of the units of the client's card and of the server's, in the order of [`Station::ALL`].
    pub loads: Vec<[Load; Station::ALL.len()]>,
    /// Counters of each function, by [`Counters`](crate::state::Counters): the client's, then the server's.
    pub counters: Vec<[u64; COUNTERS]>,
    /// The recorded spans, if requested.
    pub timeline: Timeline,
}

/// Data to record during a run in addition to its figures. It costs memory and real time.
#[derive(Default)]
pub struct Watch<'w> {
    /// Record the spans.
    pub timeline: bool,
    /// Copies of the frames, as on the wire of a card.
    pub frames: Option<TakeFrame<'w>>,
    /// The fault plan to apply, and the place for its outcome, which is filled even if the run fails.
    pub faults: Option<(FaultPlan, &'w mut FaultReport)>,
}

/// An invalid or failed run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SimError {
    /// A number is too low or too high.
    #[error("{what}: expected {least} to {most}, found {found}")]
    Range { what: &'static str, found: u32, least: u32, most: u32 },
    /// The MTU.
    #[error("MTU: expected 256, 512, 1024, 2048 or 4096, found {0}")]
    Mtu(u16),
    /// Latencies are of one message at a time.
    #[error("latency is measured of one queue pair of one function")]
    One,
    /// The connection failed.
    #[error("message {0} did not complete: the connection is in error")]
    Broken(u32),
}

/// Runs `plan`.
///
/// # Errors
///
/// A number of the plan is out of its range.
pub fn run(plan: &Plan) -> Result<Report, SimError> {
    watch(plan, Watch::default())
}

/// Like [`run`], and records the data requested by `watch`.
///
/// # Errors
///
/// A number of the plan is out of its range.
pub fn watch<'w>(plan: &'w Plan, watch: Watch<'w>) -> Result<Report, SimError> {
    plan.check()?;
    bench::Bench::new(plan).watched(watch).run()
}
