//! The card's caches of QP contexts, keys and translations. Entries that are not cached are in host memory and are read from there.

use super::{sched::Ps, timing::Dice};

/// State of an entry: never used, in host memory, or cached in the slot with this number minus `SLOTS`.
type Place = u32;
const NEW: Place = 0;
const AWAY: Place = 1;
const SLOTS: Place = 2;

/// A cached entry: owner, number, and the time from which it is available.
struct Slot {
    fid: u8,
    number: u32,
    from: Ps,
}

/// A cache of entries, each identified by function and number. Eviction is random, so that the miss rate rises steadily with
/// the number of entries.
pub(crate) struct Cache {
    slots: Vec<Slot>,
    /// State of all entries ever used, by function and number. A new entry was just set up, and is therefore cached.
    places: Vec<Vec<Place>>,
    most: usize,
    dice: Dice,
}

impl Cache {
    /// A cache of `most` entries.
    pub(crate) fn new(most: u32) -> Self {
        Self { slots: Vec::new(), places: Vec::new(), most: most.max(1) as usize, dice: Dice::new(1) }
    }

    /// Looks up entry `number` of function `fid` at `now`; reading it from host memory takes `trip`. Returns the time at which
    /// it is available, and true on a miss. Packets that need the entry in the meantime wait as well, since otherwise they
    /// would overtake one another.
    #[inline]
    pub(crate) fn get(&mut self, fid: u8, number: u32, now: Ps, trip: Ps) -> (Ps, bool) {
        match self.places.get(usize::from(fid)).and_then(|places| places.get(number as usize)) {
            None | Some(&NEW) => (self.place(fid, number, now), false),
            Some(&AWAY) => (self.place(fid, number, now + trip), true),
            Some(place) => (now.max(self.slots[(place - SLOTS) as usize].from), false),
        }
    }

    /// Caches an entry that is available from `from` on, evicting another if there is no room.
    #[cold]
    fn place(&mut self, fid: u8, number: u32, from: Ps) -> Ps {
        let slot = match self.slots.len() < self.most {
            true => self.slots.len(),
            false => (self.dice.throw() * self.most as f64) as usize,
        };
        *self.place_of(fid, number) = slot as Place + SLOTS;
        let thing = Slot { fid, number, from };
        match self.slots.get_mut(slot) {
            Some(place) => {
                let other = std::mem::replace(place, thing);
                *self.place_of(other.fid, other.number) = AWAY;
            }
            None => self.slots.push(thing),
        }
        from
    }

    fn place_of(&mut self, fid: u8, number: u32) -> &mut Place {
        let (fid, number) = (usize::from(fid), number as usize);
        if self.places.len() <= fid {
            self.places.resize(fid + 1, Vec::new());
        }
        let places = &mut self.places[fid];
        if places.len() <= number {
            places.resize((number + 1).next_power_of_two(), NEW);
        }
        &mut places[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miss rate of cyclic accesses to `things` entries.
    fn missed(most: u32, things: u32) -> f64 {
        let mut all = Cache::new(most);
        (0..things).for_each(|n| assert_eq!(all.get(1, n, 0, 5), (0, false), "a new one is at hand"));
        let misses = (0..20 * things).filter(|n| all.get(1, n % things, 100, 5).1).count();
        misses as f64 / f64::from(20 * things)
    }

    #[test]
    fn as_many_as_there_is_room_for_are_never_missed_and_more_are_by_and_by() {
        assert_eq!(missed(100, 100), 0.0);
        let shares = [110, 150, 300, 1000].map(|things| missed(100, things));
        assert!(shares.is_sorted() && shares[0] > 0.02 && shares[0] < 0.3 && shares[3] > 0.85, "{shares:?}");
    }

    #[test]
    fn what_comes_while_a_thing_is_read_waits_for_it() {
        let mut one = Cache::new(1);
        one.get(1, 7, 0, 5);
        one.get(1, 8, 0, 5);
        assert_eq!(one.get(1, 7, 10, 5), (15, true));
        assert_eq!(one.get(1, 7, 12, 5), (15, false));
        assert_eq!(one.get(1, 7, 20, 5), (20, false));
    }

    #[test]
    fn things_of_several_functions_share_the_room() {
        let mut one = Cache::new(1);
        one.get(1, 7, 0, 5);
        one.get(2, 7, 0, 5);
        assert_eq!(one.get(1, 7, 10, 5), (15, true));
    }
}
