//! Sets of parties in the node's file.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Maximum number of programs on a node at a time.
pub const PROGRAMS: usize = 4096;
/// Number of party slots; slot 0 is not used. Cleaning up after dead parties takes a slot, so those beyond [`PROGRAMS`] are for the
/// cleaning process when all others are taken.
pub const PARTIES: usize = PROGRAMS + 64;
/// Bits of a party's number in an opener ID.
pub const PARTY_BITS: u32 = 13;

const WORDS: usize = PARTIES.div_ceil(64);
const SUMMARIES: usize = WORDS.div_ceil(64);

/// A set of parties. It is changed under the node's lock, and read without it.
///
/// A node may have thousands of parties but usually has few, so a summary tells which words can have members. A word is set before its
/// summary and cleared before it: if a process dies in between, the summary has an excess bit, or a member is not listed and the cleanup
/// after the process removes it.
#[repr(C)]
pub struct PartySet {
    /// The words that are not zero, a bit each.
    summary: [AtomicU64; SUMMARIES],
    words: [AtomicU64; WORDS],
}

impl PartySet {
    /// True if `slot` is a member.
    #[inline]
    pub fn has(&self, slot: u16) -> bool {
        let word = self.words.get(usize::from(slot) / 64);
        word.is_some_and(|word| word.load(Acquire) & 1 << (slot % 64) != 0)
    }

    /// Adds `slot`.
    pub fn insert(&self, slot: u16) {
        let at = usize::from(slot) / 64 % WORDS;
        self.words[at].fetch_or(1 << (slot % 64), AcqRel);
        self.summary[at / 64].fetch_or(1 << (at % 64), AcqRel);
    }

    /// Removes `slot`.
    pub fn remove(&self, slot: u16) {
        let (at, bit) = (usize::from(slot) / 64 % WORDS, 1u64 << (slot % 64));
        if self.words[at].fetch_and(!bit, AcqRel) & !bit == 0 {
            self.summary[at / 64].fetch_and(!(1 << (at % 64)), AcqRel);
        }
    }

    /// Its members, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        let worth = (0..SUMMARIES).flat_map(|at| bits(at, self.summary[at].load(Acquire)));
        worth.filter(|at| *at < WORDS).flat_map(|at| bits(at, self.words[at].load(Acquire))).map(|n| n as u16)
    }

    /// Numbers from 1 on that are not members, in order.
    pub fn free(&self) -> impl Iterator<Item = u16> + '_ {
        (0..WORDS)
            .flat_map(|at| bits(at, !self.words[at].load(Acquire)))
            .map(|n| n as u16)
            .skip_while(|n| *n == 0)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.load(Acquire).count_ones() as usize).sum()
    }

    /// True if there are no members.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// The numbers of the bits set in word `at` of a bit set.
#[inline]
fn bits(at: usize, word: u64) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)))
        .take_while(|word| *word != 0)
        .map(move |word| at * 64 + word.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> PartySet {
        PartySet {
            summary: std::array::from_fn(|_| AtomicU64::new(0)),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[test]
    fn a_set_lists_what_was_put_in_and_not_taken_out() {
        let set = empty();
        let all = [1, 63, 64, 1000, 4095, 4096, PARTIES as u16 - 1];
        all.iter().for_each(|slot| set.insert(*slot));
        assert_eq!(set.iter().collect::<Vec<_>>(), all);
        assert_eq!((set.len(), set.has(64), set.has(65), set.has(u16::MAX)), (all.len(), true, false, false));
        assert_eq!(set.free().take(2).collect::<Vec<_>>(), [2, 3]);
        for (left, slot) in all.iter().enumerate() {
            assert_eq!(set.iter().next(), Some(*slot));
            set.remove(*slot);
            assert_eq!(set.len(), all.len() - 1 - left);
        }
        assert!(set.is_empty());
        (1..PARTIES as u16).for_each(|slot| set.insert(slot));
        assert_eq!((set.free().next(), set.len()), (None, PARTIES - 1));
    }
}
