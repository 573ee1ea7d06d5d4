//! Small messages that come in the CQE itself (`qpc.cs_res`): the device saves a write to the receiver's buffer, and
//! the poll copies the bytes to where the receive's segments point.

use crate::{
    dma::{DmaRing, copy_to_caller},
    transport::Bar,
};
use hwspec::{
    layout::Layout,
    wqe::{DataSeg, INVALID_LKEY, ZERO_BYTE_COUNT},
};
use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Where a region lies.
#[derive(Clone)]
pub enum Home {
    /// In this process, from this address on.
    Here(u64),
    /// In the device, from this offset in BAR0 on.
    Device(Bar, u32),
    /// Nowhere: what is written there is gone.
    Nowhere,
}

impl Home {
    /// Copies `bytes` to byte `offset` of the region.
    fn put(&self, offset: u64, bytes: &[u8]) {
        match self {
            Self::Here(addr) => copy_to_caller(addr + offset, bytes),
            Self::Device(bar, at) => put_in_device(bar, at + offset as u32, bytes),
            Self::Nowhere => {}
        }
    }
}

/// Writes bytes to device memory at `at` of BAR0, which is written in words.
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
    home: Home,
}

impl Shifted {
    /// Notes a region.
    pub fn insert(&self, lkey: u32, hca_va: u64, len: u64, home: Home) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.push(Region { lkey, hca_va, len, home });
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

    /// Where `len` bytes at `addr` under `lkey` lie, and how far from its start; `None` if they leave their region.
    #[inline]
    fn locate(&self, lkey: u32, addr: u64, len: usize) -> Option<(Home, u64)> {
        if !self.any.load(Relaxed) {
            return Some((Home::Here(addr), 0));
        }
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = regions.iter().find(|r| r.lkey == lkey) else {
            return Some((Home::Here(addr), 0));
        };
        let offset = addr.checked_sub(region.hca_va)?;
        (offset.checked_add(len as u64)? <= region.len).then(|| (region.home.clone(), offset))
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
            let Some((home, offset)) = self.shifted.locate(data.lkey(), data.addr(), now.len()) else {
                return false;
            };
            home.put(offset, now);
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
        assert_eq!(at(1, 0x5000), Some(0x5000));
        shifted.insert(1, 0x1000, 0x100, Home::Here(0x9_0000));
        shifted.insert(3, 0, 0x100, Home::Nowhere);
        assert_eq!(at(1, 0x1010), Some(0x9_0010));
        assert_eq!(at(1, 0x10f9), None, "one byte too far");
        assert_eq!(at(1, 0xfff), None);
        assert_eq!(at(2, 0x5000), Some(0x5000));
        assert_eq!(at(3, 0x50), Some(0));
        shifted.remove(1);
        assert_eq!(at(1, 0x5000), Some(0x5000));
    }
}
