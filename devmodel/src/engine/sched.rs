//! Events in the order of their times; of equal times, in the order they were made.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Picoseconds of virtual time.
pub type Ps = u64;

/// What orders an event: its time, its number, and the place where what is to happen lies. Keys are small, for they are what a heap moves.
type Key = u128;

/// Bits of a place: so many events are never ahead at once.
const PLACE: u32 = 24;
/// Bits of an event's number.
const NUMBER: u32 = 40;

/// What is to happen, by time.
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

fn time(key: Key) -> Ps {
    (key >> (PLACE + NUMBER)) as Ps
}

fn place(key: Key) -> usize {
    (key & ((1 << PLACE) - 1)) as usize
}

impl<T> Schedule<T> {
    /// The time: that of the event taken last.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Something happens at `at`, or now if that is past.
    pub fn at(&mut self, at: Ps, what: T) {
        let place = match self.free.pop() {
            Some(place) => place as usize,
            None => {
                self.places.push(None);
                self.places.len() - 1
            }
        };
        assert!(place < 1 << PLACE, "expected at most {} events ahead", 1u32 << PLACE);
        self.places[place] = Some(what);
        self.made = (self.made + 1) & ((1 << NUMBER) - 1);
        let at = Key::from(at.max(self.now)) << (PLACE + NUMBER);
        self.heap.push(Reverse(at | Key::from(self.made) << PLACE | place as Key));
    }

    /// The next event, and when it is.
    pub fn peek(&self) -> Option<(Ps, &T)> {
        let Reverse(key) = self.heap.peek()?;
        Some((time(*key), self.places[place(*key)].as_ref()?))
    }

    /// Takes the next event without any time going on.
    pub fn drop_next(&mut self) -> Option<T> {
        self.pop().map(|(_, what)| what)
    }

    /// Makes `at` the time, unless it is past.
    pub fn begin(&mut self, at: Ps) {
        self.now = self.now.max(at);
    }

    /// Takes the next event; the time is then its time.
    pub fn take(&mut self) -> Option<T> {
        let (at, what) = self.pop()?;
        self.now = self.now.max(at);
        Some(what)
    }

    fn pop(&mut self) -> Option<(Ps, T)> {
        let Reverse(key) = self.heap.pop()?;
        let what = self.places[place(key)].take()?;
        self.free.push(place(key) as u32);
        Some((time(key), what))
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
