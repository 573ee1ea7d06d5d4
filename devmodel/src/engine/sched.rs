//! Events in the order of their times; of equal times, in the order they were made.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// Picoseconds of virtual time.
pub type Ps = u64;

struct At<T>(Ps, u64, T);

impl<T> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T> Eq for At<T> {}
impl<T> PartialOrd for At<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for At<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// What is to happen, by time.
pub struct Schedule<T> {
    now: Ps,
    made: u64,
    heap: BinaryHeap<Reverse<At<T>>>,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { now: 0, made: 0, heap: BinaryHeap::new() }
    }
}

impl<T> Schedule<T> {
    /// The time: that of the event taken last.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Something happens at `at`, or now if that is past.
    pub fn at(&mut self, at: Ps, what: T) {
        self.made += 1;
        self.heap.push(Reverse(At(at.max(self.now), self.made, what)));
    }

    /// The next event, and when it is.
    pub fn peek(&self) -> Option<(Ps, &T)> {
        self.heap.peek().map(|Reverse(At(at, _, what))| (*at, what))
    }

    /// Takes the next event without any time going on.
    pub fn drop_next(&mut self) -> Option<T> {
        self.heap.pop().map(|Reverse(At(_, _, what))| what)
    }

    /// Makes `at` the time, unless it is past.
    pub fn begin(&mut self, at: Ps) {
        self.now = self.now.max(at);
    }

    /// Takes the next event; the time is then its time.
    pub fn take(&mut self) -> Option<T> {
        let Reverse(At(at, _, what)) = self.heap.pop()?;
        self.now = self.now.max(at);
        Some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_equal_times_by_age() {
        let mut s = Schedule::default();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            s.at(at, name);
        }
        assert_eq!(s.take(), Some('a'));
        s.at(0, 'x');
        assert_eq!(std::iter::from_fn(|| s.take()).collect::<String>(), "xbcd");
        assert_eq!(s.now(), 5);
    }
}
