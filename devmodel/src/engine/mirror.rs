//! Copies of the frames on a wire, in the order in which their last bits left.

use super::sched::Ps;
use std::collections::BTreeMap;

/// Receives frames: the time at which the last bit left the port, and all bytes up to the ICRC.
pub type TakeFrame<'w> = &'w mut dyn FnMut(Ps, &[u8]);

/// Delays frames that others may overtake.
pub(crate) struct Mirror<'w> {
    take: TakeFrame<'w>,
    held: BTreeMap<(Ps, u64), Vec<u8>>,
    number: u64,
}

impl<'w> Mirror<'w> {
    /// Passes frames to `take`.
    pub(crate) fn new(take: TakeFrame<'w>) -> Self {
        Self { take, held: BTreeMap::new(), number: 0 }
    }

    /// A frame that leaves completely at `at`.
    pub(crate) fn frame(&mut self, at: Ps, whole: Vec<u8>) {
        self.number += 1;
        self.held.insert((at, self.number), whole);
    }

    /// Passes on the frames up to `now`: no more frames leave before it.
    pub(crate) fn pass(&mut self, now: Ps) {
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), whole) = first.remove_entry();
            (self.take)(at, &whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_the_order_of_their_last_bits() {
        let mut seen = Vec::new();
        let mut take = |at: Ps, whole: &[u8]| seen.push((at, whole[0]));
        let mut mirror = Mirror::new(&mut take);
        for (at, byte) in [(7, 1), (5, 2), (9, 3), (5, 4)] {
            mirror.frame(at, vec![byte]);
        }
        mirror.pass(7);
        mirror.frame(8, vec![5]);
        mirror.pass(Ps::MAX);
        assert_eq!(seen, [(5, 2), (5, 4), (7, 1), (8, 5), (9, 3)]);
    }
}
