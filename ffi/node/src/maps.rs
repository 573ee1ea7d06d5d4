//! Ranges of this process's memory that drivers mapped for the device.
//!
//! The kernel checks accesses to the memory of other programs page by page. This process's own memory is accessed by ordinary loads and
//! stores, so stray addresses must be caught first.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::*},
    },
};

/// A set of ranges that counts how often each was mapped.
#[derive(Default)]
pub struct Maps {
    /// Number of mappings that cover the range from this address to the next entry.
    segments: Mutex<BTreeMap<u64, u32>>,
    generation: AtomicU32,
}

/// A range found by an earlier lookup: start, end, generation of the set.
#[derive(Clone, Copy, Default)]
pub struct Found {
    start: u64,
    end: u64,
    generation: u32,
}

impl Maps {
    /// An empty set.
    pub const fn new() -> Self {
        Self { segments: Mutex::new(BTreeMap::new()), generation: AtomicU32::new(0) }
    }

    /// Adds a mapping of `start..end`.
    pub fn add(&self, start: u64, end: u64) {
        self.change(start, end, |count| count.saturating_add(1));
    }

    /// Removes one mapping of `start..end`.
    pub fn remove(&self, start: u64, end: u64) {
        self.change(start, end, |count| count.saturating_sub(1));
        self.generation.fetch_add(1, Release);
    }

    fn change(&self, start: u64, end: u64, f: impl Fn(u32) -> u32) {
        if start >= end {
            return;
        }
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        for at in [start, end] {
            let count = segments.range(..=at).next_back().map_or(0, |(_, c)| *c);
            segments.entry(at).or_insert(count);
        }
        segments.range_mut(start..end).for_each(|(_, count)| *count = f(*count));
        // Drops boundaries between segments with the same count.
        let mut before = segments.range(..start).next_back().map_or(0, |(_, c)| *c);
        let touched: Vec<u64> = segments.range(start..=end).map(|(at, _)| *at).collect();
        for at in touched {
            match segments.get(&at) {
                Some(count) if *count == before => drop(segments.remove(&at)),
                Some(count) => before = *count,
                None => {}
            }
        }
    }

    /// True if all of `start..end` is mapped. `found` caches the result of an earlier call, and is updated.
    #[inline]
    pub fn covers(&self, start: u64, end: u64, found: &mut Found) -> bool {
        if start >= found.start && end <= found.end && found.generation == self.generation.load(Acquire) {
            return true;
        }
        self.search(start, end, found)
    }

    #[cold]
    fn search(&self, start: u64, end: u64, found: &mut Found) -> bool {
        let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((first, count)) = segments.range(..=start).next_back() else { return false };
        if *count == 0 {
            return false;
        }
        let stop = segments.range(start + 1..).find(|(_, count)| **count == 0).map(|(at, _)| *at);
        let stop = stop.unwrap_or(u64::MAX);
        if end > stop {
            return false;
        }
        *found = Found { start: *first, end: stop, generation: self.generation.load(Acquire) };
        true
    }

    /// True if any of `start..end` is mapped.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let before = segments.range(..=start).next_back().is_some_and(|(_, count)| *count != 0);
        before || segments.range(start..end).any(|(_, count)| *count != 0)
    }

    /// Number of boundaries, for tests.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(maps: &Maps, start: u64, end: u64) -> bool {
        maps.covers(start, end, &mut Found::default())
    }

    #[test]
    fn overlapping_mappings_count() {
        let maps = Maps::default();
        maps.add(0x1000, 0x3000);
        maps.add(0x2000, 0x4000);
        assert!(covers(&maps, 0x1000, 0x4000) && covers(&maps, 0x1fff, 0x2001));
        assert!(!covers(&maps, 0xfff, 0x1001) && !covers(&maps, 0x3fff, 0x4001));
        maps.remove(0x1000, 0x3000);
        assert!(!covers(&maps, 0x1000, 0x1001) && covers(&maps, 0x2000, 0x4000));
        maps.remove(0x2000, 0x4000);
        assert!(!covers(&maps, 0x2000, 0x2001));
        assert_eq!(maps.len(), 0);
    }

    #[test]
    fn what_was_found_is_forgotten_when_a_mapping_ends() {
        let (maps, mut found) = (Maps::default(), Found::default());
        maps.add(0x1000, 0x2000);
        assert!(maps.covers(0x1000, 0x1800, &mut found));
        maps.remove(0x1000, 0x2000);
        assert!(!maps.covers(0x1000, 0x1800, &mut found));
    }

    #[test]
    fn many_mappings_of_one_range_cost_no_more_than_one() {
        let maps = Maps::default();
        (0..10_000).for_each(|_| maps.add(0x1000, 0x2000));
        assert_eq!(maps.len(), 2);
        (0..10_000).for_each(|_| maps.remove(0x1000, 0x2000));
        assert_eq!(maps.len(), 0);
    }
}
