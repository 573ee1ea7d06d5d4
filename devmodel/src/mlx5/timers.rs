//! What happens when a timer of a QP runs out.

use super::work::Work;
use crate::{region::TimerKind, transport};

/// A timer entry came up. The deadline in the QP's row is what counts: it may have moved on or be gone.
pub(crate) fn expire(w: &mut Work<'_, '_, '_>, kind: TimerKind) {
    let now = w.step.now;
    let is_due = |deadline: u64| deadline != 0 && now >= deadline;
    match kind {
        TimerKind::Ack if is_due(w.q.requester.ack_deadline) => {
            w.execute |= transport::acknowledgement_timeout(w, |w| w.is_peer_held_up());
        }
        TimerKind::Rnr if is_due(w.q.requester.rnr_deadline) => {
            w.q.requester.rnr_timeout();
            w.execute = true;
        }
        _ => {}
    }
}
