//! An entry of a completion queue, of which no more is read than its completion needs.

use crate::dma::BlockRing;
use hwspec::cqe::Cqe64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An entry that the device has written, in its ring.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    words: &'a [AtomicU64; 8],
    /// The last of `words`: what happened to which request of which queue.
    last: u64,
}

impl<'a> Entry<'a> {
    /// Entry `index` of `ring`, if `ours` returns for its last byte that the device has written it.
    #[inline(always)]
    pub fn take(ring: &'a BlockRing, index: u32, ours: impl FnOnce(u8) -> bool) -> Option<Self> {
        ring.written(index, ours).map(|(words, last)| Self { words, last })
    }

    /// The CQE with the given words of 8 bytes and the last one; others are zero.
    #[inline(always)]
    fn parts<const N: usize>(&self, wanted: [usize; N]) -> Cqe64 {
        let mut bytes = [0; 64];
        for at in wanted {
            bytes[at * 8..][..8].copy_from_slice(&self.words[at].load(Relaxed).to_ne_bytes());
        }
        bytes[56..].copy_from_slice(&self.last.to_ne_bytes());
        Cqe64::from_bytes(bytes)
    }

    /// Operation, queue and work request.
    #[inline(always)]
    pub(super) fn end(&self) -> Cqe64 {
        self.parts([])
    }

    /// The same, and the length.
    #[inline(always)]
    pub(super) fn sent(&self) -> Cqe64 {
        self.parts([5])
    }

    /// The same, and of a received message its source and whether it had a GRH.
    #[inline(always)]
    pub(super) fn received(&self) -> Cqe64 {
        self.parts([3, 5])
    }

    /// The whole CQE.
    #[inline(always)]
    pub fn whole(&self) -> Cqe64 {
        self.parts([0, 1, 2, 3, 4, 5, 6])
    }
}
