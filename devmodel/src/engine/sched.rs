//! Events in the order of their times; of equal times, in the order they were made.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Picoseconds of virtual time.
pub type Ps = u64;

/// The key that orders an event: its time and its number; then the place where the event lies. Keys are small, for they are what a heap
/// moves.
type Key = (Ps, u64, u32);

/// The events to come, by time.
pub struct Schedule<T> {
    now: Ps,
    made: u64,
    heap: BinaryHeap<Reverse<Key>>,
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { now: 0, made: 0, heap: BinaryHeap::new(), places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Schedule<T> {
    /// The time: that of the event taken last.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Something happens at `at`, or now if that is past.
    pub fn at(&mut self, at: Ps, what: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        self.places[place as usize] = Some(what);
        self.made += 1;
        self.heap.push(Reverse((at.max(self.now), self.made, place)));
    }

    /// The next event, and when it is.
    pub fn peek(&self) -> Option<(Ps, &T)> {
        let Reverse((at, _, place)) = self.heap.peek()?;
        Some((*at, self.places[*place as usize].as_ref()?))
    }

    /// Takes the next event without any time going on.
    pub fn drop_next(&mut self) -> Option<T> {
        let Reverse((_, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.places[place as usize].take()
    }

    /// Makes `at` the time, unless it is past.
    pub fn begin(&mut self, at: Ps) {
        self.now = self.now.max(at);
    }

    /// Takes the next event; the time is then its time.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.now = self.now.max(at);
        self.free.push(place);
        self.places[place as usize].take()
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
