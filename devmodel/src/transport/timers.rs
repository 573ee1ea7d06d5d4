//! Timers of a connection.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A timer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Timer {
    /// The oldest request is not acknowledged (IBTA 9.7.6.1.3).
    Ack,
    /// The wait after an RNR NAK is over (IBTA 9.7.5.2.8). The transport ignores it once the connection is in error.
    Rnr,
}

impl Timer {
    /// All timers, in order.
    pub const ALL: [Self; 2] = [Self::Ack, Self::Rnr];
}

/// Deadlines of a connection's timers, ps; 0 is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Timers([u64; Timer::ALL.len()]);

impl Timers {
    /// Starts `timer`, to expire at `at`.
    #[inline(always)]
    pub(crate) fn set(&mut self, timer: Timer, at: u64) {
        self.0[timer as usize] = at;
    }

    /// Stops `timer`.
    #[inline(always)]
    pub(crate) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = 0;
    }

    /// The deadline of `timer`, if it runs.
    #[inline(always)]
    pub(crate) fn deadline(&self, timer: Timer) -> Option<u64> {
        match self.0[timer as usize] {
            0 => None,
            at => Some(at),
        }
    }

    /// True if `timer` runs.
    #[inline(always)]
    pub(crate) fn runs(&self, timer: Timer) -> bool {
        self.0[timer as usize] != 0
    }

    /// True if `timer` runs and has expired at `now`.
    pub(crate) fn is_due(&self, timer: Timer, now: u64) -> bool {
        self.deadline(timer).is_some_and(|at| now >= at)
    }

    /// The running timers with their deadlines.
    #[inline(always)]
    pub(crate) fn pending(self) -> impl Iterator<Item = (Timer, u64)> {
        Timer::ALL.into_iter().filter_map(move |timer| self.deadline(timer).map(|at| (timer, at)))
    }
}

// A timer's place is its number.
const _: () = {
    let mut i = 0;
    while i < Timer::ALL.len() {
        assert!(Timer::ALL[i] as usize == i);
        i += 1;
    }
};
