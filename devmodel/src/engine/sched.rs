//! Events in order of time; events at the same time are in order of creation.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Picoseconds of virtual time.
pub type Ps = u64;

/// Ordering key of an event: its time and number, followed by the place where the event is stored. Keys are small because the
/// heap moves them.
type Key = (Ps, u64, u32);

/// Future events, ordered by time.
#[derive(Clone)]
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
    /// Current time: that of the event taken last.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Schedules `what` at `at`, or now if that is past.
    pub fn at(&mut self, at: Ps, what: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        self.places[place as usize] = Some(what);
        self.made += 1;
        self.heap.push(Reverse((at.max(self.now), self.made, place)));
    }

    /// The next event and its time.
    pub fn peek(&self) -> Option<(Ps, &T)> {
        let Reverse((at, _, place)) = self.heap.peek()?;
        Some((*at, self.places[*place as usize].as_ref()?))
    }

    /// Takes the next event without advancing the time.
    pub fn drop_next(&mut self) -> Option<T> {
        let Reverse((_, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.places[place as usize].take()
    }

    /// Takes the next event that is due by `now`, and its time.
    pub fn take_by(&mut self, now: Ps) -> Option<(Ps, T)> {
        let at = self.peek().map(|(at, _)| at).filter(|at| *at <= now)?;
        Some((at, self.drop_next()?))
    }

    /// Advances the time to `at`, unless that is past.
    pub fn begin(&mut self, at: Ps) {
        self.now = self.now.max(at);
    }

    /// Takes the next event and advances the time to it.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        let at = self.peek()?.0;
        self.begin(at);
        self.drop_next()
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
