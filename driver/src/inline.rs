//! Small messages that come in the CQE itself (`qpc.cs_res`): the device saves a write to the receiver's buffer, and
//! the poll copies the bytes to where the receive's segments point.

use crate::dma::{DmaRing, copy_to_caller};
use hwspec::{
    layout::Layout,
    wqe::{DataSeg, INVALID_LKEY, ZERO_BYTE_COUNT},
};
use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Memory regions whose keys address them from somewhere else than where they lie.
#[derive(Default)]
pub struct Shifted {
    any: AtomicBool,
    regions: RwLock<Vec<Region>>,
}

struct Region {
    lkey: u32,
    hca_va: u64,
    len: u64,
    addr: u64,
}

impl Shifted {
    /// Notes a region.
    pub fn insert(&self, lkey: u32, hca_va: u64, len: usize, addr: u64) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.push(Region { lkey, hca_va, len: len as u64, addr });
        self.any.store(true, Relaxed);
    }

    /// Forgets the region of `lkey`, if it was one.
    pub fn remove(&self, lkey: u32) {
        if self.any.load(Relaxed) {
            let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
            regions.retain(|r| r.lkey != lkey);
            self.any.store(!regions.is_empty(), Relaxed);
        }
    }

    /// Where `len` bytes at `addr` under `lkey` lie in this process; `None` if they leave their region.
    #[inline]
    fn locate(&self, lkey: u32, addr: u64, len: usize) -> Option<u64> {
        if !self.any.load(Relaxed) {
            return Some(addr);
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = regions.iter().find(|r| r.lkey == lkey) else { return Some(addr) };
        let offset = addr.checked_sub(region.hca_va)?;
        (offset.checked_add(len as u64)? <= region.len).then_some(region.addr + offset)
    }
}

/// Where a QP's receives point: the polling side's view of its receive ring.
pub struct Inbox {
    /// The ring.
    pub ring: DmaRing,
    /// The first data segment of an entry.
    pub first: usize,
    /// Data segments in one entry.
    pub segments: usize,
    /// Regions of the device that do not lie where their keys say.
    pub shifted: Arc<Shifted>,
}

impl Inbox {
    /// Copies `bytes` to the segments of receive `number`. False if they do not hold them.
    pub fn put(&self, number: u32, mut bytes: &[u8]) -> bool {
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
            let Some(at) = self.shifted.locate(data.lkey(), data.addr(), now.len()) else { return false };
            copy_to_caller(at, now);
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
        assert_eq!(shifted.locate(1, 0x5000, 8), Some(0x5000));
        shifted.insert(1, 0x1000, 0x100, 0x9_0000);
        assert_eq!(shifted.locate(1, 0x1010, 8), Some(0x9_0010));
        assert_eq!(shifted.locate(1, 0x10f9, 8), None, "one byte too far");
        assert_eq!(shifted.locate(1, 0xfff, 8), None);
        assert_eq!(shifted.locate(2, 0x5000, 8), Some(0x5000));
        shifted.remove(1);
        assert_eq!(shifted.locate(1, 0x5000, 8), Some(0x5000));
    }
}
