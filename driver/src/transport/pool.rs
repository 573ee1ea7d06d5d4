//! Memory for the driver's own structures: large pieces shared with the device, cut into blocks.
//!
//! Each mapping costs an entry in the IOMMU (kernel VFIO allows 65,535) and a system call, and rings are small. So
//! blocks up to [`SMALL`] share slabs of [`SLAB`] bytes, the size of a huge page.

use super::{DmaBlock, Iova};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

const PAGE: usize = 4096;
/// Size of a slab.
pub const SLAB: usize = 2 << 20;
/// Larger blocks get their own piece.
const SMALL: usize = SLAB / 4;
const PAGES: usize = SLAB / PAGE;

/// Memory shared by this process and the device.
pub struct Piece {
    /// Address in this process, page-aligned.
    pub ptr: NonNull<u8>,
    /// Address as seen by the device.
    pub iova: Iova,
    /// Length in bytes, whole pages.
    pub len: usize,
}
// SAFETY: raw memory; access to it belongs to the holder of the block cut from it.
unsafe impl Send for Piece {}

/// Source of pieces.
pub trait Source {
    /// Obtains `len` bytes of zeroed memory that the device may read and write.
    fn obtain(&self, len: usize) -> io::Result<Piece>;
    /// Ends the device's access and frees the memory.
    fn release(&self, piece: Piece);
}

/// Allocator of blocks.
#[derive(Default)]
pub struct Pool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slabs: BTreeMap<Iova, Slab>,
    /// Pieces that consist of a single block.
    whole: HashMap<Iova, Piece>,
    /// Sizes of the blocks cut from slabs.
    cut: HashMap<Iova, usize>,
}

struct Slab {
    piece: Piece,
    used: [bool; PAGES],
}

impl Slab {
    /// Finds the first free run of `pages`, aligned to its size rounded up to a power of two, which keeps page lists
    /// for the device short.
    fn find(&self, pages: usize) -> Option<usize> {
        let step = pages.next_power_of_two();
        (0..PAGES / step).map(|n| n * step).find(|at| self.used[*at..at + pages].iter().all(|used| !used))
    }

    fn mark(&mut self, at: usize, pages: usize, used: bool) {
        self.used[at..at + pages].fill(used);
    }

    fn is_empty(&self) -> bool {
        self.used.iter().all(|used| !used)
    }

    fn block(&self, page: usize, len: usize) -> Option<DmaBlock> {
        let ptr = NonNull::new(self.piece.ptr.as_ptr().wrapping_add(page * PAGE))?;
        Some(DmaBlock { ptr, iova: self.piece.iova + (page * PAGE) as u64, len })
    }
}

impl Pool {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a zeroed block of at least `len` bytes.
    pub fn alloc(&self, len: usize, source: &dyn Source) -> io::Result<DmaBlock> {
        let too_much = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_much)?;
        let mut state = self.locked();
        if len <= SMALL {
            if let Some(block) = state.cut(len) {
                return Ok(block);
            }
            // A whole slab may exceed the process's limit of locked memory. Then the block gets only as much as it
            // needs.
            if let Ok(piece) = source.obtain(SLAB) {
                state.slabs.insert(piece.iova, Slab { piece, used: [false; PAGES] });
                return state.cut(len).ok_or_else(too_much);
            }
        }
        let piece = source.obtain(len)?;
        let block = DmaBlock { ptr: piece.ptr, iova: piece.iova, len: piece.len };
        state.whole.insert(piece.iova, piece);
        Ok(block)
    }

    /// The block allocated at `iova`, if it has `len` bytes.
    pub fn find(&self, iova: Iova, len: usize) -> Option<DmaBlock> {
        let state = self.locked();
        if let Some(piece) = state.whole.get(&iova) {
            return (len <= piece.len).then_some(DmaBlock { ptr: piece.ptr, iova, len: piece.len });
        }
        let size = *state.cut.get(&iova).filter(|size| len <= **size)?;
        let (base, slab) = state.slabs.range(..=iova).next_back()?;
        slab.block((iova - base) as usize / PAGE, size)
    }

    /// Frees the block allocated at `iova`. Returns false if there is none.
    pub fn free(&self, iova: Iova, source: &dyn Source) -> bool {
        let mut state = self.locked();
        if let Some(piece) = state.whole.remove(&iova) {
            source.release(piece);
            return true;
        }
        let Some(len) = state.cut.remove(&iova) else { return false };
        let Some((&base, slab)) = state.slabs.range_mut(..=iova).next_back() else { return false };
        slab.mark((iova - base) as usize / PAGE, len / PAGE, false);
        // The last slab is kept, since a program that frees a ring often creates another.
        if slab.is_empty() && state.slabs.len() > 1 {
            if let Some(slab) = state.slabs.remove(&base) {
                source.release(slab.piece);
            }
        }
        true
    }

    /// Frees everything.
    pub fn clear(&self, source: &dyn Source) {
        let state = std::mem::take(&mut *self.locked());
        state.whole.into_values().for_each(|piece| source.release(piece));
        state.slabs.into_values().for_each(|slab| source.release(slab.piece));
    }
}

impl State {
    fn cut(&mut self, len: usize) -> Option<DmaBlock> {
        let pages = len / PAGE;
        let (page, slab) = self.slabs.values_mut().find_map(|slab| Some((slab.find(pages)?, slab)))?;
        let block = slab.block(page, len)?;
        slab.mark(page, pages, true);
        // SAFETY: a free run of the slab's pages: no block there is in use, and the device no longer uses the previous
        // one.
        unsafe { block.ptr.as_ptr().write_bytes(0, len) };
        self.cut.insert(block.iova, len);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        alloc::{Layout, alloc_zeroed, dealloc},
        cell::Cell,
    };

    /// Pieces from the heap.
    struct Heap {
        next: Cell<Iova>,
        live: Cell<usize>,
        most: usize,
    }

    impl Heap {
        fn new(most: usize) -> Self {
            Self { next: Cell::new(SLAB as u64), live: Cell::new(0), most }
        }

        fn layout(len: usize) -> Layout {
            Layout::from_size_align(len, PAGE).unwrap()
        }
    }

    impl Source for Heap {
        fn obtain(&self, len: usize) -> io::Result<Piece> {
            if self.live.get() + len > self.most {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            let iova = self.next.get();
            self.next.set(iova + len.next_multiple_of(SLAB) as u64);
            self.live.set(self.live.get() + len);
            // SAFETY: the layout is not empty.
            let ptr = unsafe { alloc_zeroed(Self::layout(len)) };
            Ok(Piece { ptr: NonNull::new(ptr).unwrap(), iova, len })
        }

        fn release(&self, piece: Piece) {
            self.live.set(self.live.get() - piece.len);
            // SAFETY: allocated by `obtain` with the same length.
            unsafe { dealloc(piece.ptr.as_ptr(), Self::layout(piece.len)) };
        }
    }

    #[test]
    fn small_blocks_share_a_piece_and_are_zeroed_again() {
        let (pool, heap) = (Pool::default(), Heap::new(usize::MAX));
        let first = pool.alloc(100, &heap).unwrap();
        let second = pool.alloc(0x3000, &heap).unwrap();
        assert_eq!((first.len, second.len, heap.live.get()), (PAGE, 0x3000, SLAB));
        assert_eq!(second.iova % 0x4000, 0, "aligned to its size");
        // SAFETY: the block is our own.
        unsafe { first.ptr.as_ptr().write(7) };
        let at = first.iova;
        assert!(pool.free(at, &heap) && !pool.free(at, &heap));
        let again = pool.alloc(PAGE, &heap).unwrap();
        // SAFETY: the block is our own.
        assert_eq!((again.iova, unsafe { again.ptr.as_ptr().read() }), (at, 0));
        pool.clear(&heap);
        assert_eq!(heap.live.get(), 0);
    }

    #[test]
    fn a_large_block_is_a_piece_and_goes_when_it_is_freed() {
        let (pool, heap) = (Pool::default(), Heap::new(usize::MAX));
        let block = pool.alloc(3 << 20, &heap).unwrap();
        assert_eq!((block.len, heap.live.get()), (3 << 20, 3 << 20));
        assert!(pool.free(block.iova, &heap));
        assert_eq!(heap.live.get(), 0);
    }

    #[test]
    fn blocks_do_not_overlap_and_empty_slabs_go() {
        let (pool, heap) = (Pool::default(), Heap::new(usize::MAX));
        let blocks: Vec<_> = (1..200).map(|n| pool.alloc(n % 7 * PAGE + 1, &heap).unwrap()).collect();
        for (n, a) in blocks.iter().enumerate() {
            for b in &blocks[n + 1..] {
                assert!(a.iova + a.len as u64 <= b.iova || b.iova + b.len as u64 <= a.iova);
            }
            assert_eq!(pool.find(a.iova, a.len).map(|found| found.ptr), Some(a.ptr));
            assert!(pool.find(a.iova, a.len + 1).is_none() && pool.find(a.iova + 1, 1).is_none());
        }
        blocks.iter().for_each(|block| assert!(pool.free(block.iova, &heap)));
        assert_eq!(heap.live.get(), SLAB);
        pool.clear(&heap);
    }

    #[test]
    fn where_a_slab_is_too_much_to_lock_the_block_gets_what_it_needs() {
        let (pool, heap) = (Pool::default(), Heap::new(64 << 10));
        let block = pool.alloc(0x2000, &heap).unwrap();
        assert_eq!((block.len, heap.live.get()), (0x2000, 0x2000));
        assert!(pool.alloc(64 << 10, &heap).is_err());
        pool.clear(&heap);
        assert_eq!(heap.live.get(), 0);
    }
}
