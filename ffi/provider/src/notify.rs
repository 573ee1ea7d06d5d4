//! When `ibv_req_notify_cq` makes an event of completions that are already there.
//!
//! The device raises an event at once if the CQ is armed behind its producer. Programs that empty the CQ, arm it and
//! then wait need that: a completion may have come in between. Programs that arm first and poll afterwards would be
//! woken twice for one completion, and some (perftest up to 4.5 with one channel for two CQs) then take one CQ's event
//! for the other's. So:
//!
//! - a program that has found the CQ empty since its last event is armed at what it has taken;
//! - one that arms before polling is armed at what can be seen, and when its poll then leaves some of that behind (it took
//!   no more than it had room for), the CQ is armed again at what it has taken, so it is woken for the rest.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// No completions are watched.
const NONE: u64 = u64::MAX;
/// Bit of `watched`: solicited events only.
const SOLICITED: u64 = 1 << 32;

/// What one CQ's program did last. Races between its threads cost at most a superfluous event.
pub struct Notify {
    /// Not found empty since the last event.
    unread: AtomicU32,
    /// The index behind the completions visible when it was armed, and how; or [`NONE`].
    watched: AtomicU64,
}

impl Default for Notify {
    fn default() -> Self {
        Self { unread: AtomicU32::new(0), watched: AtomicU64::new(NONE) }
    }
}

impl Notify {
    /// The program took an event.
    pub fn woken(&self) {
        self.unread.store(1, Relaxed);
    }

    /// The program asks for an event.
    pub fn arm(&self, cq: &driver::Cq, solicited_only: bool) {
        if self.unread.load(Relaxed) == 0 {
            self.watched.store(NONE, Relaxed);
            cq.arm(solicited_only);
        } else {
            let seen = cq.arm_beyond_visible(solicited_only);
            self.watched.store(u64::from(seen) | if solicited_only { SOLICITED } else { 0 }, Relaxed);
        }
    }

    /// The program polled for `wanted` and got `taken`.
    #[inline]
    pub fn polled(&self, cq: &driver::Cq, taken: usize, wanted: usize) {
        if taken < wanted {
            if self.unread.load(Relaxed) != 0 {
                self.unread.store(0, Relaxed);
                self.watched.store(NONE, Relaxed);
            }
        } else if self.watched.load(Relaxed) != NONE {
            self.left_behind(cq);
        }
    }

    #[cold]
    fn left_behind(&self, cq: &driver::Cq) {
        let watched = self.watched.swap(NONE, Relaxed);
        if watched != NONE && cq.holds_before(watched as u32) {
            cq.arm(watched & SOLICITED != 0);
        }
    }
}
