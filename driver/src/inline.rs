//! Small messages that arrive in the CQE itself (`qpc.cs_res`). This saves the device a write to the receiver's buffer;
//! the poll copies the bytes to the segments of the receive.

use crate::{
    dma::{DmaRing, copy_to_caller, copy_where_mapped},
    transport::Bar,
};
use hwspec::{
    layout::Layout,
    wqe::{DataSeg, INVALID_LKEY, ZERO_BYTE_COUNT},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The location of a memory region.
#[derive(Clone)]
pub enum Home {
    /// In this process, starting at this address.
    Here(u64),
    /// The same, for a region with on-demand paging: pages may be missing.
    Paged(u64),
    /// In device memory, starting at this offset in BAR0.
    Device(Bar, u32),
    /// Nowhere: writes to it are discarded.
    Nowhere,
}

impl Home {
    /// Copies `bytes` to byte `offset` of the region. Returns false if there is no memory.
    fn put(&self, offset: u64, bytes: &[u8]) -> bool {
        match self {
            Self::Here(addr) => copy_to_caller(addr + offset, bytes),
            Self::Paged(addr) => return copy_where_mapped(addr.wrapping_add(offset), bytes),
            Self::Device(bar, at) => put_in_device(bar, at + offset as u32, bytes),
            Self::Nowhere => {}
        }
        true
    }
}

/// Writes bytes to device memory at `at` of BAR0, which takes only whole words.
#[cold]
pub fn put_in_device(bar: &Bar, at: u32, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let (word, within) = ((at + done as u32) & !3, ((at + done as u32) & 3) as usize);
        let here = (4 - within).min(bytes.len() - done);
        let mut four = match here {
            4 => [0; 4],
            _ => bar.read32(word).to_be_bytes(),
        };
        four[within..within + here].copy_from_slice(&bytes[done..done + here]);
        bar.write32(word, u32::from_be_bytes(four));
        done += here;
    }
}

/// Memory regions, by key index, with keys that address them by other than their own addresses, or with pages that may
/// be missing.
#[derive(Default)]
pub struct Shifted {
    any: AtomicBool,
    regions: RwLock<HashMap<u32, Region>>,
}

struct Region {
    /// The key's variant.
    variant: u8,
    hca_va: u64,
    len: u64,
    home: Home,
}

impl Shifted {
    /// Adds a region.
    pub fn insert(&self, lkey: u32, hca_va: u64, len: u64, home: Home) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(lkey >> 8, Region { variant: lkey as u8, hca_va, len, home });
        self.any.store(true, Relaxed);
    }

    /// The region of `lkey` is gone. Messages for it that the device has received, but that have not been polled, are
    /// discarded, since the key's addresses mean nothing by themselves. The entry stays until the key's index is
    /// reused.
    pub fn retire(&self, lkey: u32) {
        if self.any.load(Relaxed) {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(region) = regions.get_mut(&(lkey >> 8)) {
                region.home = Home::Nowhere;
            }
        }
    }

    /// Removes the old region with the index of `lkey`, which now names a new one.
    pub fn forget(&self, lkey: u32) {
        if self.any.load(Relaxed) {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            regions.remove(&(lkey >> 8));
            self.any.store(!regions.is_empty(), Relaxed);
        }
    }

    /// Finds the region under `lkey` with `len` bytes at `addr`, and their offset in it. `None` if it does not contain
    /// them.
    #[inline]
    fn locate(&self, lkey: u32, addr: u64, len: usize) -> Option<(Home, u64)> {
        if !self.any.load(Relaxed) {
            return Some((Home::Here(addr), 0));
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = regions.get(&(lkey >> 8)) else {
            return Some((Home::Here(addr), 0));
        };
        if region.variant != lkey as u8 {
            // The key is stale.
            return Some((Home::Nowhere, 0));
        }
        let offset = addr.checked_sub(region.hca_va)?;
        (offset.checked_add(len as u64)? <= region.len).then(|| (region.home.clone(), offset))
    }
}

/// The polling side's view of a receive ring, to find the buffers of its receives.
pub struct Inbox {
    /// The ring.
    pub ring: DmaRing,
    /// Index of the first data segment in an entry.
    pub first: usize,
    /// Data segments in one entry.
    pub segments: usize,
    /// Regions of the device with keys that do not address them by their own addresses.
    pub shifted: Arc<Shifted>,
}

impl Inbox {
    /// Scatters `bytes` to the segments of receive `number`. Returns false if they are too small.
    #[inline]
    pub fn put(&self, number: u32, bytes: &[u8]) -> bool {
        if self.segments != 0 && !bytes.is_empty() {
            let data = DataSeg::read(&self.ring.get_segment(number, self.first));
            // The usual case: the bytes go to the first segment, in a region at its own address.
            if data.byte_count() as usize >= bytes.len() && !self.shifted.any.load(Relaxed) {
                copy_to_caller(data.addr(), bytes);
                return true;
            }
        }
        self.scatter(number, bytes)
    }

    #[inline(never)]
    fn scatter(&self, number: u32, mut bytes: &[u8]) -> bool {
        for segment in self.first..self.first + self.segments {
            if bytes.is_empty() {
                break;
            }
            let data = DataSeg::read(&self.ring.get_segment(number, segment));
            let room = match data.byte_count() {
                0 if data.lkey() == INVALID_LKEY => break,
                0 => ZERO_BYTE_COUNT,
                count => count,
            };
            let (now, rest) = bytes.split_at((room as usize).min(bytes.len()));
            let Some((home, offset)) = self.shifted.locate(data.lkey(), data.addr(), now.len()) else {
                return false;
            };
            if !home.put(offset, now) {
                return false;
            }
            bytes = rest;
        }
        bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_region_is_found_where_it_lies_and_nowhere_else() {
        let shifted = Shifted::default();
        let at = |lkey, addr| {
            shifted.locate(lkey, addr, 8).map(|(home, offset)| match home {
                Home::Here(addr) => addr + offset,
                _ => 0,
            })
        };
        assert_eq!(at(0x100, 0x5000), Some(0x5000));
        shifted.insert(0x100, 0x1000, 0x100, Home::Here(0x9_0000));
        shifted.insert(0x300, 0, 0x100, Home::Nowhere);
        assert_eq!(at(0x100, 0x1010), Some(0x9_0010));
        assert_eq!(at(0x100, 0x10f9), None, "one byte too far");
        assert_eq!(at(0x100, 0xfff), None);
        assert_eq!(at(0x200, 0x5000), Some(0x5000));
        assert_eq!(at(0x300, 0x50), Some(0));
        shifted.forget(0x100);
        assert_eq!(at(0x100, 0x5000), Some(0x5000));
    }

    #[test]
    fn what_came_for_a_region_that_is_gone_goes_nowhere() {
        let shifted = Shifted::default();
        let mut memory = [0_u8; 16];
        shifted.insert(0x100, 0, 16, Home::Here(memory.as_mut_ptr() as u64));
        let (home, offset) = shifted.locate(0x100, 8, 4).unwrap();
        assert!(home.put(offset, &[7; 4]));
        shifted.retire(0x100);
        let (home, offset) = shifted.locate(0x100, 8, 4).unwrap();
        assert!(home.put(offset, &[9; 4]), "and the completion is a good one");
        assert_eq!(memory[8..], [7, 7, 7, 7, 0, 0, 0, 0]);
        shifted.insert(0x101, 0, 16, Home::Here(memory.as_mut_ptr() as u64));
        assert!(
            matches!(shifted.locate(0x100, 8, 8), Some((Home::Nowhere, _))),
            "the index has another key now"
        );
        shifted.forget(0x102);
        assert!(
            matches!(shifted.locate(0x102, 0x5000, 8), Some((Home::Here(0x5000), 0))),
            "the key is another's now"
        );
    }

    #[test]
    fn pages_that_are_missing_are_told() {
        let mut memory = [0_u8; 8];
        assert!(Home::Paged(memory.as_mut_ptr() as u64).put(4, &[5; 4]));
        assert_eq!(memory, [0, 0, 0, 0, 5, 5, 5, 5]);
        assert!(!Home::Paged(0).put(0x1007, &[5; 4]));
    }
}
