//! Rings of fixed-size entries in memory shared with the device.
#![allow(unsafe_code)] // entries are indexed with a mask and no bounds check, several times per post and poll

use super::{DmaMem, order::after_device_wrote};
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, Release},
        },
    },
};

/// A ring of entries of `8 * entry_words` bytes. The number of entries is a power of two.
pub struct DmaRing {
    mem: Arc<DmaMem>,
    /// The first word of the first entry, in `mem`.
    first: NonNull<AtomicU64>,
    log_entry_words: u32,
    mask: u32,
}
// SAFETY: `first` points into `mem`, which is Send and Sync, and the words there are atomics.
unsafe impl Send for DmaRing {}
// SAFETY: as for Send.
unsafe impl Sync for DmaRing {}

impl DmaRing {
    /// Creates a ring of `entries` entries of `entry_bytes` bytes at byte `offset` of `mem`. The ring must fit
    /// (checked), both numbers must be powers of two, and entries have at least 8 bytes.
    pub fn new(mem: Arc<DmaMem>, offset: usize, entries: u32, entry_bytes: usize) -> Self {
        assert!(
            entries.is_power_of_two() && entry_bytes.is_power_of_two() && entry_bytes >= 8 && offset % 8 == 0
        );
        let words = &mem.words()[offset / 8..][..entries as usize * entry_bytes / 8];
        let first = NonNull::from(words).cast();
        let log_entry_words = (entry_bytes / 8).trailing_zeros();
        Self { mem, first, log_entry_words, mask: entries - 1 }
    }

    /// Number of entries.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// IOVA of its first entry.
    pub fn iova(&self) -> u64 {
        self.mem.iova() + (self.first.as_ptr() as usize - self.mem.words().as_ptr() as usize) as u64
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> &[AtomicU64] {
        let at = ((index & self.mask) as usize) << self.log_entry_words;
        // SAFETY: `new` has checked that `mask + 1` entries of this size fit behind `first`, in memory that `mem` keeps
        // alive.
        unsafe { std::slice::from_raw_parts(self.first.add(at).as_ptr(), self.entry_words()) }
    }

    #[inline(always)]
    fn entry_words(&self) -> usize {
        1 << self.log_entry_words
    }

    /// Reads a 16-byte segment of entry `index`, `segment` segments from its start.
    #[inline(always)]
    pub fn get_segment(&self, index: u32, segment: usize) -> [u8; 16] {
        let words = &self.entry(index)[segment * 2..segment * 2 + 2];
        let mut out = [0; 16];
        out[..8].copy_from_slice(&words[0].load(Relaxed).to_ne_bytes());
        out[8..].copy_from_slice(&words[1].load(Relaxed).to_ne_bytes());
        out
    }

    /// Writes a 16-byte segment to entry `index`, `segment` segments from its start.
    #[inline(always)]
    pub fn put_segment(&self, index: u32, segment: usize, bytes: &[u8; 16]) {
        let words = &self.entry(index)[segment * 2..segment * 2 + 2];
        words[0].store(u64::from_ne_bytes(hwspec::layout::prefix(bytes)), Relaxed);
        words[1].store(u64::from_ne_bytes(hwspec::layout::prefix(&bytes[8..])), Relaxed);
    }
}

/// A ring of 64-byte entries: basic blocks of work requests; or CQEs or EQEs, with the owner bit in their last byte.
pub struct BlockRing(DmaRing);

impl BlockRing {
    /// Bytes of an entry.
    const BYTES: usize = 64;

    /// As [`DmaRing::new`].
    pub fn new(mem: Arc<DmaMem>, offset: usize, blocks: u32) -> Self {
        Self(DmaRing::new(mem, offset, blocks, Self::BYTES))
    }

    /// Entry `index`.
    #[inline(always)]
    pub fn block(&self, index: u32) -> &[AtomicU64; Self::BYTES / 8] {
        // SAFETY: the ring was created with entries of this size, `mask + 1` of which fit behind `first`, in memory
        // that it keeps alive.
        unsafe {
            self.0.first.cast::<[AtomicU64; Self::BYTES / 8]>().add((index & self.0.mask) as usize).as_ref()
        }
    }

    /// The last byte of entry `index`: opcode and owner.
    #[inline(always)]
    pub fn last_byte(&self, index: u32) -> u8 {
        self.block(index)[7].load(Relaxed).to_ne_bytes()[7]
    }

    /// Returns the words of entry `index` and the value of the last one, if `ours` accepts its last byte, i.e. the
    /// device has written the entry. Reads of the other words after this return what the device wrote.
    #[inline(always)]
    pub fn written(&self, index: u32, ours: impl FnOnce(u8) -> bool) -> Option<(&[AtomicU64; 8], u64)> {
        let words = self.block(index);
        let last = words[7].load(Relaxed);
        if !ours(last.to_ne_bytes()[7]) {
            return None;
        }
        after_device_wrote();
        Some((words, last))
    }

    /// Copies entry `index`, if the device has [`written`](Self::written) it.
    #[inline(always)]
    pub fn take64(&self, index: u32, ours: impl FnOnce(u8) -> bool) -> Option<[u8; Self::BYTES]> {
        let (words, last) = self.written(index, ours)?;
        let mut out = [0; Self::BYTES];
        for (bytes, word) in out[..56].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        out[56..].copy_from_slice(&last.to_ne_bytes());
        Some(out)
    }

    /// Writes entry `index`, its last byte last.
    pub fn put64(&self, index: u32, bytes: &[u8; Self::BYTES]) {
        for (at, (bytes, word)) in bytes.chunks_exact(8).zip(self.block(index)).enumerate() {
            let order = if at == 7 { Release } else { Relaxed };
            word.store(u64::from_ne_bytes(hwspec::layout::prefix(bytes)), order);
        }
    }
}

impl std::ops::Deref for BlockRing {
    type Target = DmaRing;
    #[inline(always)]
    fn deref(&self) -> &DmaRing {
        &self.0
    }
}
