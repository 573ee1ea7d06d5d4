//! Send doorbell: the doorbell record holds the number of posted WQEs, the register only tells that it
//! changed (PRM: doorbells).

use super::{fetch, flush, work::Work};
use crate::state::{Counters, QpFlags};
use hwspec::context::QpState;

/// Reads the producer index and starts the requester, or flushes the WQEs posted to a QP in error.
pub(crate) fn ring(w: &mut Work<'_, '_, '_>, uar: u32) {
    // A doorbell is valid only through the UAR page of the QP.
    let good = w.q.uar == uar && w.func.function().rings() && !w.q.has(QpFlags::NO_SQ);
    if !good || fetch::refresh(w).is_none() {
        return w.count(Counters::BadDoorbells);
    }
    match w.state() {
        // In SQE, posted WQEs are flushed.
        QpState::Rts | QpState::SqErr => w.execute = true,
        QpState::Err => flush::enter_error(w),
        // Posted before the QP was ready to send; the transition to RTS starts it.
        _ => {}
    }
}
