//! Writes the segments of a WQE to the ring.

use crate::{
    dma::{DmaRing, copy_from_caller, few_from_caller},
    error::PostError,
    verbs::Sge,
};
use hwspec::wqe::*;

/// Writes consecutive segments, wrapping at the end of the ring.
pub struct Writer<'a> {
    ring: &'a DmaRing,
    block: u32,
    segment: usize,
}

impl<'a> Writer<'a> {
    /// Starts at basic block `block`.
    #[inline(always)]
    pub fn new(ring: &'a DmaRing, block: u32) -> Self {
        Self { ring, block, segment: 0 }
    }

    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8; 16]) {
        self.ring.put_segment(self.block, self.segment, bytes);
        self.segment += 1;
        if self.segment == DS_PER_BB {
            self.segment = 0;
            self.block = self.block.wrapping_add(1);
        }
    }

    /// Writes the remote address segment, and the operands of an atomic.
    #[inline(never)]
    pub fn remote(&mut self, raddr: u64, rkey: u32, atomic: Option<(u64, u64)>) {
        let segment = RaddrSeg::with(|s| s.raddr(raddr).rkey(rkey));
        self.put(segment.as_bytes());
        if let Some((swap_add, compare)) = atomic {
            let segment = AtomicSeg::with(|s| s.swap_add(swap_add).compare(compare));
            self.put(segment.as_bytes());
        }
    }

    #[inline(always)]
    pub fn data(&mut self, sge: &Sge) {
        self.put(data_segment(sge).as_bytes());
    }

    /// Writes inline data after a 4-byte header, zero-padded.
    #[inline(always)]
    pub fn inline(&mut self, scratch: &mut [u8], list: &[Sge], bytes: usize) {
        if bytes == 0 {
            return;
        }
        if let ([one], true) = (list, bytes <= INLINE_IN_ONE) {
            return self.put(&inline_segment(one));
        }
        self.long_inline(scratch, list, bytes);
    }

    #[inline(never)]
    fn long_inline(&mut self, scratch: &mut [u8], list: &[Sge], bytes: usize) {
        let head = InlineSeg::SIZE;
        let span = InlineSeg::span(bytes);
        scratch[..head].copy_from_slice(InlineSeg::new(bytes as u16).as_bytes());
        let mut at = head;
        for sge in list {
            let to = at + sge.length as usize;
            copy_from_caller(sge.addr, &mut scratch[at..to]);
            at = to;
        }
        scratch[at..span].fill(0);
        for segment in scratch[..span].chunks_exact(WQE_DS) {
            self.put(&hwspec::layout::prefix(segment));
        }
    }
}

/// Maximum inline data in one segment.
pub(super) const INLINE_IN_ONE: usize = WQE_DS - InlineSeg::SIZE;

/// The segment of one inline SGE of at most [`INLINE_IN_ONE`] bytes.
#[inline(always)]
pub(super) fn inline_segment(piece: &Sge) -> [u8; WQE_DS] {
    let first = u32::from_le_bytes(*InlineSeg::new(piece.length as u16).as_bytes());
    let data = few_from_caller(piece.addr, piece.length as usize);
    (u128::from(first) | data << (8 * InlineSeg::SIZE)).to_le_bytes()
}

#[inline(always)]
pub(crate) fn data_segment(sge: &Sge) -> DataSeg {
    DataSeg::with(|s| s.byte_count(sge.length & !INLINE_BIT).lkey(sge.lkey).addr(sge.addr))
}

/// Posts requests in order, up to the first that is refused.
#[inline(always)]
pub(crate) fn in_order<T>(
    all: impl IntoIterator<Item = T>,
    mut post: impl FnMut(T) -> Result<(), i32>,
) -> Result<(), PostError> {
    let mut all = all.into_iter().enumerate();
    all.try_for_each(|(index, one)| post(one).map_err(|errno| PostError { index, errno }))
}
