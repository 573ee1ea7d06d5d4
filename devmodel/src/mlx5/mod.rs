//! The parts that make the chip a ConnectX for its drivers: the pipeline from doorbell to completion, and events.
//!
//! [`Job`] is the overview, with one variant for each job of the data flow; the files below follow its structure.

pub(crate) mod step;

mod acks;
mod arrive;
pub(crate) mod completion;
mod connected;
mod datagram;
pub(crate) mod eswitch;
pub(crate) mod ethernet;
pub(crate) mod event;
mod fetch;
pub(crate) mod flush;
mod header_cache;
mod infiniband;
pub(crate) mod lists;
mod multicast;
mod packet;
pub(crate) mod rates;
mod receive;
mod requester;
mod responder;
mod status;
mod turn;
mod umr;
pub(crate) mod work;

#[cfg(test)]
mod tests;

pub(crate) use acks::drained;
pub(crate) use arrive::{arrive, arrive_in_train, arrive_inline};
pub(crate) use lists::bytes as bytes_of;
pub(crate) use multicast::special_qps;
pub(crate) use packet::Packet;
pub(crate) use status::{Failure, counter_of, counter_of_dropped, counter_of_event, event_of};
pub(crate) use step::CommandCompletion;
pub use step::{Frame, Payload, Step};
pub(crate) use turn::{expire, flush_qp, ring, take_turn};

use crate::region::TimerKind;

/// A job of one function. Numbers are indices of the function's own tables unless noted otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Command queue doorbell: one bit per slot.
    Command {
        /// Slots rung.
        slots: u32,
    },
    /// Send doorbell: the QP number as written by the driver.
    Doorbell {
        /// QP number.
        qpn: u32,
        /// UAR page of the write; the QP must be bound to it.
        uar: u32,
    },
    /// CQ arm register.
    ArmCq {
        /// CQ number.
        cqn: u32,
        /// First word of the register: serial number, solicited bit, consumer index (`doorbell::CqArm`).
        value: u32,
    },
    /// EQ consumer register.
    EqUpdate {
        /// Number of the EQ, for doorbell page `uar`.
        eqn: u32,
        /// The doorbell page.
        uar: u32,
        /// Consumer index, 24 bits.
        ci: u32,
        /// True if the register also arms.
        arm: bool,
    },
    /// A frame waits in the receive ring.
    Arrive,
    /// The QP has requests or responses to send.
    Execute {
        /// QP index.
        qp: u32,
    },
    /// The send queue has more data to send.
    Transmit {
        /// Index of the queue, which has no QP.
        sq: u32,
    },
    /// A timer of a QP, of a CQ with moderated events, or of a receive queue in error expired.
    Timeout {
        /// Index of the QP, CQ or RQ.
        qp: u32,
        /// The kind of timer.
        kind: TimerKind,
    },
    /// A queue pair went to ERR, or WQEs were posted to one in ERR: completions are owed.
    Flush {
        /// QP index.
        qp: u32,
    },
}
