//! Contexts of queue pairs that a card has at hand; the others are in host memory, and a miss costs a read of it.

use super::{sched::Ps, timing::Dice};
use std::collections::HashMap;

/// A function and a queue pair.
type Key = (u8, u32);

/// Where a context is.
#[derive(Clone, Copy)]
enum Place {
    /// At hand from this time on.
    Here(Ps),
    /// In host memory.
    Away,
}

/// The contexts at hand. Which of them makes room for another is left to chance, so that the share of misses rises steadily with the number
/// of queue pairs.
pub(crate) struct Contexts {
    slots: Vec<Key>,
    /// All that were ever used: what is new was just set up, and is at hand.
    places: HashMap<Key, Place>,
    /// The one asked for last, and from when on it is at hand.
    last: Option<(Key, Ps)>,
    most: usize,
    dice: Dice,
}

impl Contexts {
    /// Room for `most` contexts.
    pub(crate) fn new(most: u32) -> Self {
        let most = most.max(1) as usize;
        Self { slots: Vec::new(), places: HashMap::new(), last: None, most, dice: Dice::new(1) }
    }

    /// Asks at `now` for the context of a queue pair; a read of it takes `trip`. Returns from when on it is at hand, and whether it was read.
    #[inline]
    pub(crate) fn get(&mut self, fid: u8, qp: u32, now: Ps, trip: Ps) -> (Ps, bool) {
        match self.last {
            // What comes while it is read waits as well, or packets would pass one another.
            Some((last, from)) if last == (fid, qp) => (now.max(from), false),
            _ => self.look((fid, qp), now, trip),
        }
    }

    fn look(&mut self, key: Key, now: Ps, trip: Ps) -> (Ps, bool) {
        let (from, read) = match self.places.get(&key) {
            Some(Place::Here(from)) => (*from, false),
            Some(Place::Away) => (now + trip, true),
            None => (now, false),
        };
        if !matches!(self.places.get(&key), Some(Place::Here(..))) {
            self.place(key, from);
        }
        self.last = Some((key, from));
        (now.max(from), read)
    }

    fn place(&mut self, key: Key, from: Ps) {
        if self.slots.len() < self.most {
            self.slots.push(key);
        } else {
            let slot = (self.dice.throw() * self.most as f64) as usize;
            let before = std::mem::replace(&mut self.slots[slot], key);
            self.places.insert(before, Place::Away);
        }
        self.places.insert(key, Place::Here(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of misses of queue pairs in turn.
    fn missed(contexts: u32, queue_pairs: u32) -> f64 {
        let mut all = Contexts::new(contexts);
        (0..queue_pairs).for_each(|qp| assert_eq!(all.get(1, qp, 0, 5), (0, false), "a new one is at hand"));
        let misses = (0..20 * queue_pairs).filter(|n| all.get(1, n % queue_pairs, 100, 5).1).count();
        misses as f64 / f64::from(20 * queue_pairs)
    }

    #[test]
    fn as_many_as_there_is_room_for_are_never_missed_and_more_are_by_and_by() {
        assert_eq!(missed(100, 100), 0.0);
        let shares = [110, 150, 300, 1000].map(|queue_pairs| missed(100, queue_pairs));
        assert!(shares.is_sorted() && shares[0] > 0.02 && shares[0] < 0.3 && shares[3] > 0.85, "{shares:?}");
    }

    #[test]
    fn what_comes_while_a_context_is_read_waits_for_it() {
        let mut one = Contexts::new(1);
        one.get(1, 7, 0, 5);
        one.get(1, 8, 0, 5);
        assert_eq!(one.get(1, 7, 10, 5), (15, true));
        assert_eq!(one.get(1, 7, 12, 5), (15, false));
        assert_eq!(one.get(1, 7, 20, 5), (20, false));
    }
}
