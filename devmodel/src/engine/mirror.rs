//! Copies of the frames on a wire, in the order in which their last bits left.

use super::sched::{Ps, Schedule};

/// Receives frames: the time at which the last bit left the port, and all bytes up to the ICRC.
pub type TakeFrame<'w> = &'w mut dyn FnMut(Ps, &[u8]);

/// Delays frames that others may overtake.
pub(crate) struct Mirror<'w> {
    take: TakeFrame<'w>,
    held: Schedule<Vec<u8>>,
}

impl<'w> Mirror<'w> {
    /// Passes frames to `take`.
    pub(crate) fn new(take: TakeFrame<'w>) -> Self {
        Self { take, held: Schedule::default() }
    }

    /// A frame that leaves completely at `at`.
    pub(crate) fn frame(&mut self, at: Ps, whole: Vec<u8>) {
        self.held.at(at, whole);
    }

    /// Passes on the frames up to `now`: no more frames leave before it.
    pub(crate) fn pass(&mut self, now: Ps) {
        while let Some((at, whole)) = self.held.take_by(now) {
            (self.take)(at, &whole);
        }
    }
}
