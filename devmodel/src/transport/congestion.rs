//! Congestion notification (annex A17.9.3): the receiver of marked packets tells their sender, and the sender slows down.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Least time between two notifications, ps.
const PACE_PS: u64 = 50_000_000;

/// The notification point of a connection: it tells the peer of marked packets, but not of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Notifier {
    /// No notification before this time, ps.
    pub after: u64,
}

impl Notifier {
    /// A packet came that met congestion. True if the peer is to be notified now.
    pub(crate) fn on_mark(&mut self, now: u64) -> bool {
        let due = now >= self.after;
        if due {
            self.after = now + PACE_PS;
        }
        due
    }
}

/// The reaction point of a connection, which says how fast it may send. This one has no algorithm: it goes on at the rate of
/// its link whatever it hears, and keeps no state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Congestion;

impl Congestion {
    /// A packet with `bytes` of payload went out.
    #[inline(always)]
    pub(crate) fn on_send(&mut self, _bytes: u32) {}

    /// The peer notified of congestion at `now`.
    #[inline(always)]
    pub(crate) fn on_cnp(&mut self, _now: u64) {}

    /// Packets that may go out at `now`.
    #[inline(always)]
    pub(crate) fn rate(&self, _now: u64) -> u32 {
        u32::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_keep_their_distance() {
        let mut notifier = Notifier::default();
        assert!(notifier.on_mark(7));
        assert!(!notifier.on_mark(7) && !notifier.on_mark(7 + PACE_PS - 1));
        assert!(notifier.on_mark(7 + PACE_PS));
        assert!(!notifier.on_mark(8 + PACE_PS));
    }
}
