//! The drawing of the data flow: one variant per arrow.

use crate::region::TimerKind;

/// A job of one function. Numbers are indices of the function's own tables unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Command queue doorbell: a bit per slot.
    Command {
        /// Slots rung.
        slots: u32,
    },
    /// Send doorbell: the QP's number as the driver wrote it.
    Doorbell {
        /// QP number.
        qpn: u32,
        /// UAR page the write came through; the QP must be bound to it.
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
        /// The page.
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
    /// The send queue has more to send.
    Transmit {
        /// Index of the queue, which belongs to no QP.
        sq: u32,
    },
    /// A timer of the QP, of a CQ whose events are moderated, or of a receive queue in error ran out.
    Timeout {
        /// Index of the QP, CQ or RQ.
        qp: u32,
        /// Which.
        kind: TimerKind,
    },
    /// A queue pair went to ERR, or more was posted to one that is there: completions are owed.
    Flush {
        /// QP index.
        qp: u32,
    },
}
