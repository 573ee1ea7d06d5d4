//! What everything costs: the only file with such numbers.
//!
//! Start values, to be fitted: a ConnectX-5 in a PCIe 3.0 x8 slot of a fast desktop, direct 100 Gb/s cable. Latencies are
//! constant per unit and only busy times vary, or packets of one QP would overtake each other. Message rates and the cost
//! of context and translation misses are not calibrated.

use super::sched::Ps;
use crate::mlx5::Job;

/// What can do one thing at a time, per function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Doorbells, WQEs and the making of packets.
    Requester,
    /// Payload read from the host's memory.
    DmaRead,
    /// The sending side of the port.
    Wire,
    /// Arriving packets.
    Receiver,
    /// Data and completions written to the host's memory.
    DmaWrite,
    /// Commands, events, timers.
    Control,
}

/// Units there are.
pub const UNITS: usize = 6;

const NS: Ps = 1000;

/// The program writes 64 bytes to a doorbell page.
pub const PIO: Ps = 94 * NS;
/// PCI Express, one way.
pub const PCIE: Ps = 137 * NS;
/// Root complex to memory.
pub const MEMORY: Ps = 241 * NS;
/// From the adapter that sends to the one that receives.
pub const ACROSS: Ps = 275 * NS;
/// A read by DMA: there, memory, back.
pub const DMA_READ: Ps = 2 * PCIE + MEMORY;
/// A write by DMA until a program can see it.
pub const DMA_WRITE: Ps = PCIE + MEMORY;
/// A program that polls a CQ takes note of an entry.
pub const POLL_CQ: Ps = 6 * NS;
/// A program that polls memory takes note of a changed byte.
pub const POLL_MEMORY: Ps = 46 * NS;
/// Work of the program around one posted request beside the doorbell.
pub const POST: Ps = 30 * NS;

/// A byte over PCIe 3.0 x8: 55.9 Gb/s of payload.
pub const PCIE_BYTE: Ps = 143;
/// A byte at 100 Gb/s.
pub const WIRE_BYTE: Ps = 80;
/// Preamble, check sequence and gap around a frame, bytes.
pub const FRAME_OVERHEAD: u64 = 24;
/// What a sender may have queued for the wire before it makes more packets.
pub const BACKLOG: Ps = 2000 * NS;

/// Which unit does a job, and how long it is busy with it.
pub fn of(job: &Job) -> (Unit, Ps) {
    match job {
        Job::Doorbell { .. } | Job::Execute { .. } | Job::Transmit { .. } | Job::Flush { .. } => {
            (Unit::Requester, 5 * NS)
        }
        Job::Arrive => (Unit::Receiver, 5 * NS),
        Job::Command { .. } | Job::ArmCq { .. } | Job::EqUpdate { .. } | Job::Timeout { .. } => {
            (Unit::Control, 5 * NS)
        }
    }
}
