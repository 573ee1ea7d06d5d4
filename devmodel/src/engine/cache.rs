//! The card's caches of QP contexts, keys and translations. Entries that are not cached are in host memory and are read from there.

use super::{sched::Ps, timing::Dice};

/// State of an entry.
#[derive(Clone, Copy, Default)]
enum Entry {
    #[default]
    NeverUsed,
    InHostMemory,
    /// Cached in the slot with this number.
    Cached(u32),
}

/// A cached entry: owner, number, and the time from which it is available.
struct Slot {
    fid: u8,
    number: u32,
    from: Ps,
}

/// A cache of contexts, keys or translations, each identified by function and number. Eviction is random, so that the miss rate rises
/// steadily with the number of entries.
pub(crate) struct Cache {
    slots: Vec<Slot>,
    /// State of all entries ever used, by function and number. A new entry was just set up, and is therefore cached.
    entries: Vec<Vec<Entry>>,
    capacity: usize,
    dice: Dice,
}

impl Cache {
    /// A cache of `capacity` entries.
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            slots: Vec::new(),
            entries: Vec::new(),
            capacity: capacity.max(1) as usize,
            dice: Dice::new(1),
        }
    }

    /// Looks up entry `number` of function `fid` at `now`; reading it from host memory takes `trip`. Returns the time at which
    /// it is available, and true on a miss. Packets that need the entry in the meantime wait as well, since otherwise they
    /// would overtake one another.
    #[inline]
    pub(crate) fn get(&mut self, fid: u8, number: u32, now: Ps, trip: Ps) -> (Ps, bool) {
        match self.entries.get(usize::from(fid)).and_then(|entries| entries.get(number as usize)) {
            None | Some(Entry::NeverUsed) => (self.insert(fid, number, now), false),
            Some(Entry::InHostMemory) => (self.insert(fid, number, now + trip), true),
            Some(Entry::Cached(slot)) => (now.max(self.slots[*slot as usize].from), false),
        }
    }

    /// Caches an entry that is available from `from` on, evicting another if there is no room.
    #[cold]
    fn insert(&mut self, fid: u8, number: u32, from: Ps) -> Ps {
        let slot = match self.slots.len() < self.capacity {
            true => self.slots.len(),
            false => (self.dice.throw() * self.capacity as f64) as usize,
        };
        *self.entry(fid, number) = Entry::Cached(slot as u32);
        let new = Slot { fid, number, from };
        match self.slots.get_mut(slot) {
            Some(slot) => {
                let evicted = std::mem::replace(slot, new);
                *self.entry(evicted.fid, evicted.number) = Entry::InHostMemory;
            }
            None => self.slots.push(new),
        }
        from
    }

    fn entry(&mut self, fid: u8, number: u32) -> &mut Entry {
        let (fid, number) = (usize::from(fid), number as usize);
        if self.entries.len() <= fid {
            self.entries.resize(fid + 1, Vec::new());
        }
        let entries = &mut self.entries[fid];
        if entries.len() <= number {
            entries.resize((number + 1).next_power_of_two(), Entry::NeverUsed);
        }
        &mut entries[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miss rate of cyclic accesses to `entries` entries.
    fn miss_rate(capacity: u32, entries: u32) -> f64 {
        let mut cache = Cache::new(capacity);
        (0..entries).for_each(|n| assert_eq!(cache.get(1, n, 0, 5), (0, false), "a new entry is cached"));
        let misses = (0..20 * entries).filter(|n| cache.get(1, n % entries, 100, 5).1).count();
        misses as f64 / f64::from(20 * entries)
    }

    #[test]
    fn entries_within_the_capacity_are_never_missed_and_the_miss_rate_rises_beyond_it() {
        assert_eq!(miss_rate(100, 100), 0.0);
        let rates = [110, 150, 300, 1000].map(|entries| miss_rate(100, entries));
        assert!(rates.is_sorted() && rates[0] > 0.02 && rates[0] < 0.3 && rates[3] > 0.85, "{rates:?}");
    }

    #[test]
    fn a_packet_that_needs_an_entry_being_read_waits_for_it() {
        let mut one = Cache::new(1);
        one.get(1, 7, 0, 5);
        one.get(1, 8, 0, 5);
        assert_eq!(one.get(1, 7, 10, 5), (15, true));
        assert_eq!(one.get(1, 7, 12, 5), (15, false));
        assert_eq!(one.get(1, 7, 20, 5), (20, false));
    }

    #[test]
    fn entries_of_several_functions_share_the_capacity() {
        let mut one = Cache::new(1);
        one.get(1, 7, 0, 5);
        one.get(2, 7, 0, 5);
        assert_eq!(one.get(1, 7, 10, 5), (15, true));
    }
}
