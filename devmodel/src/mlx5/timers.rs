//! Handling of expired QP timers.

use super::work::Work;
use crate::transport::{self, Timer};

/// Handles a timer entry. The deadline in the QP's row is authoritative: the timer may have been restarted or
/// stopped.
pub(crate) fn expire(w: &mut Work<'_, '_, '_>, timer: Timer) {
    if !w.q.requester.timers.is_due(timer, w.step.now) {
        return;
    }
    match timer {
        Timer::Ack => w.execute |= transport::acknowledgement_timeout(w, |w| w.is_peer_held_up()),
        Timer::Rnr => {
            w.q.requester.rnr_timeout();
            w.execute = true;
        }
    }
}
