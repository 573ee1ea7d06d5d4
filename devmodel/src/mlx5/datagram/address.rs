//! Source and destination of a datagram.

use crate::state::QpRow;
pub(crate) use hwspec::wire::lrh::MULTICAST_QPN;
use hwspec::{context::ServiceType, cqe::CqeSyndrome};

/// The QP number of `q` as seen by a peer; its own is `number`. Special QPs have the numbers 0 and 1 in any row.
pub(super) fn source_qpn(q: &QpRow, number: u32) -> u32 {
    match ServiceType::from_raw(q.service) {
        ServiceType::Qp0 => 0,
        ServiceType::Qp1 => 1,
        _ if q.deth_sqpn != 0 => q.deth_sqpn & 0xff_ffff,
        _ => number,
    }
}

/// The destination of a multicast packet: the QPs of a group.
pub(crate) const GROUP: u32 = u32::MAX;
/// The destination of a packet to QP1: all QP1s of a function with several.
pub(crate) const GENERAL: u32 = u32::MAX - 1;

/// The error of a message that exceeds a packet or a receive buffer.
pub(super) const TOO_LONG: CqeSyndrome = CqeSyndrome::LocalLengthErr;
