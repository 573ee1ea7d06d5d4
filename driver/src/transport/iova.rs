//! Allocation of IO virtual addresses.

use super::Iova;
use std::collections::BTreeMap;

/// The lowest address allocated: 0 means "none" in places, and a small number used as an address by mistake should hit
/// nothing.
const LOWEST: Iova = 1 << 20;
/// Minimum and maximum block size within which an IOVA keeps the offset of its memory. Page lists for the device are
/// short if both addresses agree in many low bits.
const ALIKE: (u64, u64) = (2 << 20, 1 << 30);

/// The device's address space: the ranges allowed by the IOMMU, minus those in use.
///
/// The search starts after the last allocated address, so a freed address is reused late, and the IOMMU catches a
/// device that still uses it.
#[derive(Debug)]
pub struct IovaSpace {
    /// Free ranges: first address to last address, neither adjacent nor overlapping.
    free: BTreeMap<Iova, Iova>,
    next: Iova,
    /// Page size, a power of two. Addresses and lengths are multiples of it.
    page: u64,
}

impl IovaSpace {
    /// Creates an address space with pages of `page` bytes, in which all `ranges` (first and last address each, in any
    /// order) are free.
    pub fn new(page: u64, ranges: impl IntoIterator<Item = (Iova, Iova)>) -> Self {
        let mut space = Self { free: BTreeMap::new(), next: LOWEST, page };
        for (first, last) in ranges {
            let first = first.max(LOWEST).checked_next_multiple_of(page);
            // Whole pages only: ends at the last byte of the last page that is entirely within the range.
            let last = match last % page {
                within if within == page - 1 => Some(last),
                within => (last - within).checked_sub(1),
            };
            if let (Some(first), Some(last)) = (first, last) {
                if first < last {
                    space.insert(first, last);
                }
            }
        }
        space
    }

    /// Allocates `len` bytes (whole pages) for memory at `like`, with as many equal low bits as useful and possible.
    pub fn alloc(&mut self, len: u64, like: u64) -> Option<Iova> {
        if len == 0 || len % self.page != 0 {
            return None;
        }
        let wanted = len.checked_next_power_of_two()?.clamp(ALIKE.0, ALIKE.1);
        let like = like - like % self.page;
        let steps = [wanted, ALIKE.0, self.page];
        let at = steps.into_iter().find_map(|unit| self.find(len, like % unit, unit))?;
        self.take(at, len);
        self.next = at.wrapping_add(len);
        Some(at)
    }

    /// Frees a range obtained from `alloc`. Returns false, and changes nothing, if any part of it is already free.
    pub fn free(&mut self, at: Iova, len: u64) -> bool {
        let Some(last) = len.checked_sub(1).and_then(|span| at.checked_add(span)) else { return false };
        let overlaps = self.free.range(..=last).next_back().is_some_and(|(_, end)| *end >= at);
        if !overlaps {
            self.insert(at, last);
        }
        !overlaps
    }

    /// True if the whole range is free.
    #[cfg(test)]
    fn is_free(&self, at: Iova, len: u64) -> bool {
        self.free.range(..=at).next_back().is_some_and(|(_, last)| *last >= at + (len - 1))
    }

    fn find(&self, len: u64, offset: u64, unit: u64) -> Option<Iova> {
        let fits = |first: Iova, last: Iova| {
            let lead = (offset.wrapping_sub(first)) % unit;
            let at = first.checked_add(lead)?;
            let end = at.checked_add(len - 1)?;
            (end <= last).then_some(at)
        };
        let around = self.free.range(..self.next).next_back().map(|(_, last)| *last);
        let rest = around.filter(|last| *last >= self.next).and_then(|last| fits(self.next, last));
        rest.or_else(|| self.free.range(self.next..).find_map(|(first, last)| fits(*first, *last)))
            .or_else(|| self.free.range(..self.next).find_map(|(first, last)| fits(*first, *last)))
    }

    fn take(&mut self, at: Iova, len: u64) {
        let Some((&first, &last)) = self.free.range(..=at).next_back() else { return };
        self.free.remove(&first);
        let end = at + (len - 1);
        if first < at {
            self.free.insert(first, at - 1);
        }
        if end < last {
            self.free.insert(end + 1, last);
        }
    }

    fn insert(&mut self, mut first: Iova, mut last: Iova) {
        while let Some((&other, &end)) = self.free.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            self.free.remove(&other);
            (first, last) = (first.min(other), last.max(end));
        }
        self.free.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    /// The ranges that intel-iommu allows with 39 bits: all but the window of interrupt messages.
    const VT_D: [(Iova, Iova); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];

    #[test]
    fn nothing_is_given_out_in_the_window_of_interrupt_messages() {
        let mut space = IovaSpace::new(PAGE, [(0, 0xfedf_ffff), (0xfef0_0000, 0xffff_ffff)]);
        let mut total = 0;
        while let Some(at) = space.alloc(16 << 20, 0) {
            assert!(at + (16 << 20) <= 0xfee0_0000 || at >= 0xfef0_0000, "{at:#x}");
            total += 16 << 20;
        }
        assert!(total >= 0xe000_0000u64, "most of it was to be had: {total:#x}");
    }

    #[test]
    fn addresses_are_alike_as_far_as_the_length_asks() {
        let mut space = IovaSpace::new(PAGE, VT_D);
        let small = space.alloc(0x3000, 0x7f12_3456_7000).unwrap();
        assert_eq!(small % (2 << 20), 0x7f12_3456_7000 % (2 << 20));
        let large = space.alloc(64 << 20, 0x7f12_3456_7000).unwrap();
        assert_eq!(large % (64 << 20), 0x7f12_3456_7000 % (64 << 20));
    }

    #[test]
    fn a_crowded_space_gives_what_is_left() {
        let mut space = IovaSpace::new(PAGE, [(0x10_0000, 0x10_3fff)]);
        let all: Vec<_> = (0..4).map(|_| space.alloc(0x1000, 0x7000).unwrap()).collect();
        assert_eq!(space.alloc(0x1000, 0x7000), None);
        assert!(space.free(all[2], 0x1000));
        assert!(!space.free(all[2], 0x1000), "freed twice");
        assert_eq!(space.alloc(0x1000, 0), Some(all[2]));
    }

    #[test]
    fn addresses_are_whole_pages_of_the_host() {
        let mut space = IovaSpace::new(0x1_0000, [(0x12_3000, 0xff_ffff)]);
        assert_eq!(
            (space.alloc(0x1000, 0), space.alloc(0x1_0000, 0x5000).map(|at| at % 0x1_0000)),
            (None, Some(0))
        );
        while let Some(at) = space.alloc(0x3_0000, 0x7f00_1234_0000) {
            assert!(at % 0x1_0000 == 0 && at >= 0x13_0000 && at + 0x3_0000 <= 0x100_0000);
        }
    }

    #[test]
    fn the_ends_of_the_address_space_are_no_trap() {
        let mut space = IovaSpace::new(PAGE, [(0, u64::MAX)]);
        assert!(space.alloc(1 << 63, 0).is_some());
        assert_eq!(space.alloc(1 << 63, 0), None);
        // The range extends to the last byte of the address space.
        let mut end = IovaSpace::new(PAGE, [(u64::MAX - 0x3fff, u64::MAX)]);
        assert_eq!(end.alloc(0x4000, 0), Some(u64::MAX - 0x3fff));
        assert_eq!((space.alloc(0, 0), space.alloc(1, 0)), (None, None));
        assert!(!space.free(u64::MAX, 2) && !space.free(0, 0));
        assert_eq!(IovaSpace::new(PAGE, [(5, 6), (9, 3)]).alloc(0x1000, 0), None);
    }

    proptest! {
        /// For any order of allocations and frees, the allocated ranges are disjoint and within those allowed, and in
        /// the end the initial state is restored.
        #[test]
        fn ranges_are_disjoint_allowed_and_come_back(
            orders in proptest::collection::vec((any::<bool>(), 1u64..2000, any::<u64>(), any::<prop::sample::Index>()), 1..200)
        ) {
            let ranges = [(0x20_0000, 0x7f_ffff), (0x100_0000, 0x1ff_f7ff)];
            let mut space = IovaSpace::new(PAGE, ranges);
            let fresh = space.free.clone();
            let mut held: Vec<(Iova, u64)> = Vec::new();
            for (give, pages, like, which) in orders {
                if give && !held.is_empty() {
                    let (at, len) = held.swap_remove(which.index(held.len()));
                    prop_assert!(space.free(at, len));
                    prop_assert!(space.is_free(at, len));
                } else if let Some(at) = space.alloc(pages * PAGE, like) {
                    let len = pages * PAGE;
                    prop_assert_eq!(at % PAGE, 0);
                    prop_assert!(ranges.iter().any(|(first, last)| at >= *first && at + len - 1 <= *last));
                    prop_assert!(held.iter().all(|(other, size)| at + len <= *other || other + size <= at));
                    held.push((at, len));
                }
            }
            for (at, len) in held {
                prop_assert!(space.free(at, len));
            }
            prop_assert_eq!(space.free, fresh);
        }
    }
}
