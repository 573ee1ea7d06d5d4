//! A completion queue entry, read only as far as its completion requires.

use crate::dma::BlockRing;
use hwspec::cqe::Cqe64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An entry in the ring that the device has written.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    words: &'a [AtomicU64; 8],
    /// The last of `words`: outcome, request and queue.
    last: u64,
}

impl<'a> Entry<'a> {
    /// Takes entry `index` of `ring`, if `ours` accepts its last byte, i.e. the device has written the entry.
    #[inline(always)]
    pub fn take(ring: &'a BlockRing, index: u32, ours: impl FnOnce(u8) -> bool) -> Option<Self> {
        ring.written(index, ours).map(|(words, last)| Self { words, last })
    }

    /// A CQE with the given 8-byte words and the last one; the rest is zero.
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

    /// As [`end`](Self::end), with the length.
    #[inline(always)]
    pub(super) fn sent(&self) -> Cqe64 {
        self.parts([5])
    }

    /// As [`sent`](Self::sent), with the source of a received message and whether it had a GRH.
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
