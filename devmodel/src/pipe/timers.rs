//! What happens when a timer of a QP runs out.

use super::{acks, requester, work::Work};
use crate::{
    region::TimerKind,
    state::{Counters, QpFlags},
};
use hwspec::context::QpState;

/// A timer entry came up. The deadline in the QP's row is what counts: it may have moved on or be gone.
pub(crate) fn expire(w: &mut Work<'_, '_, '_>, kind: TimerKind) {
    match kind {
        TimerKind::Ack if w.q.ack_deadline != 0 && w.step.now >= w.q.ack_deadline => {
            w.q.ack_deadline = 0;
            if matches!(w.state(), QpState::Rts | QpState::SqDrained) && w.q.una_psn != w.q.max_psn {
                if w.is_peer_held_up() {
                    // Neither a retry nor room in the peer's ring is spent while nobody can answer.
                    return requester::start_timer(w);
                }
                // IBTA 9.7.6.1.3
                w.count(Counters::LocalAckTimeoutErr);
                w.q.set(QpFlags::GAP, false);
                acks::go_back(w);
                w.execute = true;
            }
        }
        TimerKind::Rnr if w.q.rnr_deadline != 0 && w.step.now >= w.q.rnr_deadline => {
            w.q.rnr_deadline = 0;
            w.q.set(QpFlags::RNR_WAIT, false);
            w.execute = true;
        }
        _ => {}
    }
}
