//! Whom a datagram is from, and whom it is for.

use crate::state::QpRow;
pub(crate) use hwspec::wire::lrh::MULTICAST_QPN;
use hwspec::{context::ServiceType, cqe::CqeSyndrome};

/// The QP number a peer sees of `q`, which has `number`: those of the special QPs are 0 and 1 whatever their rows.
pub(super) fn source_qpn(q: &QpRow, number: u32) -> u32 {
    match ServiceType::from_raw(q.service) {
        ServiceType::Qp0 => 0,
        ServiceType::Qp1 => 1,
        _ if q.deth_sqpn != 0 => q.deth_sqpn & 0xff_ffff,
        _ => number,
    }
}

/// The destination of a packet that is not for one QP: the QPs of a multicast group.
pub(crate) const GROUP: u32 = u32::MAX;
/// All QP1s of a function that has several.
pub(crate) const GENERAL: u32 = u32::MAX - 1;

/// A message longer than a packet or a receive buffer.
pub(super) const TOO_LONG: CqeSyndrome = CqeSyndrome::LocalLengthErr;
