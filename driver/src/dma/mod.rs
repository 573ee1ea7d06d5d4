//! Memory shared with the device.
//!
//! Such memory is never a `&[u8]`: it is only copied in and out, through atomics. Words that the device must see in
//! order are stored with `Release`. A word that transfers ownership from the device (an owner bit) is loaded with
//! `Acquire` before the data that it guards.
#![allow(unsafe_code)]

pub mod order;
mod ring;

pub use ring::{BlockRing, DmaRing};

use crate::{
    error::Error,
    transport::{DmaBlock, Iova, Scope, Transport},
};
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

/// Page size used between driver and chip.
pub const PAGE_SIZE: usize = 4096;

/// A block of driver memory, freed when dropped.
pub struct DmaMem {
    block: DmaBlock,
    transport: Arc<dyn Transport>,
    drop: OnDrop,
}

#[derive(Clone)]
enum OnDrop {
    Free,
    Detach,
    Keep,
    /// Memory of the caller: unmapped, then given back.
    Return(Arc<dyn Buffers>),
}

/// A source of memory for queues. A program without `unsafe` cannot be one:
///
/// ```compile_fail,E0200
/// use std::ptr::NonNull;
/// struct Wild;
/// impl ironverbs_driver::dma::Buffers for Wild {
///     fn obtain(&self, _: usize, _: usize) -> Result<Option<NonNull<u8>>, ironverbs_driver::Error> {
///         Ok(NonNull::new(0x10000 as *mut u8))
///     }
///     fn give_back(&self, _: NonNull<u8>) {}
/// }
/// ```
///
/// # Safety
/// [`obtain`](Self::obtain) returns memory of the requested length and alignment that nothing else in this process accesses, and that stays
/// mapped, until it is given back.
pub unsafe trait Buffers: Send + Sync {
    /// Returns `len` bytes aligned to `align` (a multiple of 4096), exclusive to this process until
    /// [`give_back`](Self::give_back). `None` if the transport's own memory is to be used.
    ///
    /// # Errors
    /// No memory is available.
    fn obtain(&self, len: usize, align: usize) -> Result<Option<NonNull<u8>>, Error>;
    /// Takes back memory that is no longer in use.
    fn give_back(&self, ptr: NonNull<u8>);
}

impl DmaMem {
    /// Allocates at least `len` bytes of zeroed memory, in whole pages.
    pub fn alloc(transport: &Arc<dyn Transport>, len: usize, scope: Scope) -> Result<Self, Error> {
        let len = len.max(1).next_multiple_of(PAGE_SIZE);
        let block =
            transport.dma_alloc(len, scope).map_err(Error::io("cannot allocate memory for the device"))?;
        Self::checked(block, len, transport, OnDrop::Free)
    }

    /// Allocates at least `len` bytes of zeroed memory from `buffers`. `None` if `buffers` leaves the allocation to the
    /// transport.
    pub fn from_caller(
        transport: &Arc<dyn Transport>,
        buffers: &Arc<dyn Buffers>,
        len: usize,
    ) -> Result<Option<Self>, Error> {
        let page = transport.page_size();
        let len = len.max(1).next_multiple_of(page);
        let Some(ptr) = buffers.obtain(len, page)? else { return Ok(None) };
        if ptr.align_offset(page) != 0 {
            buffers.give_back(ptr);
            return Err(Error::invalid(format!("memory at {ptr:p} is not aligned to a page")));
        }
        // SAFETY: whole pages, ours until they are given back, which happens after they are unmapped.
        let mapped = unsafe {
            ptr.as_ptr().write_bytes(0, len);
            transport.dma_map(ptr.as_ptr(), len, crate::transport::Access::BOTH)
        };
        let iova = mapped.map_err(|error| {
            buffers.give_back(ptr);
            Error::io("cannot let the device reach the caller's memory")(error)
        })?;
        let block = DmaBlock { ptr, iova, len };
        Self::checked(block, len, transport, OnDrop::Return(buffers.clone())).map(Some)
    }

    /// Attaches to the function's block at `iova`, allocated by any opener. Dropping the view frees nothing.
    pub fn attach(transport: &Arc<dyn Transport>, iova: Iova, len: usize) -> Result<Self, Error> {
        let block =
            transport.dma_attach(iova, len).map_err(Error::io("cannot reach the function's memory"))?;
        Self::checked(block, len, transport, OnDrop::Detach)
    }

    /// Attaches to the area shared by all openers of the function.
    pub fn shared(transport: &Arc<dyn Transport>, len: usize) -> Result<Self, Error> {
        let block = transport.shared().map_err(Error::io("cannot map the area shared by the openers"))?;
        Self::checked(block, len, transport, OnDrop::Keep)
    }

    fn checked(
        block: DmaBlock,
        len: usize,
        transport: &Arc<dyn Transport>,
        drop: OnDrop,
    ) -> Result<Self, Error> {
        if block.len < len || block.ptr.as_ptr().align_offset(PAGE_SIZE) != 0 {
            return Err(Error::device(
                format!("{len} bytes of page-aligned memory"),
                format!("{} bytes at {:p}", block.len, block.ptr),
            ));
        }
        Ok(Self { block, transport: transport.clone(), drop })
    }

    /// Its address as seen by the device.
    pub fn iova(&self) -> Iova {
        self.block.iova
    }

    /// Its address in this process, for a caller that makes sure that nothing else accesses the bytes it reads or writes, the device included.
    pub fn as_ptr(&self) -> *mut u8 {
        self.block.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Always false: a block has at least one page.
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Never frees the block, because the device may still write to it, or the function keeps it.
    pub fn leak(mut self) {
        self.drop = OnDrop::Keep;
    }

    /// Leaves the block to the function and only ends this view.
    pub fn leave(mut self) {
        self.drop = OnDrop::Detach;
    }

    /// Frees the function's block through an attached view.
    pub fn free(mut self) {
        self.drop = OnDrop::Free;
    }

    /// The memory as words, in memory order (big-endian values are not converted).
    #[inline(always)]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the block is page-aligned, lives as long as `self`, and is only accessed through atomics.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr().cast(), self.block.len / 8) }
    }

    /// The memory as 32-bit words. At one place words of both sizes do not mix.
    #[inline(always)]
    pub(crate) fn words32(&self) -> &[AtomicU32] {
        // SAFETY: as in `words`. Its users in this crate access each word by one size; another size initializes it at most.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr().cast(), self.block.len / 4) }
    }

    /// Copies `data` to byte `offset` (a multiple of 8). The last word is zero-padded.
    pub fn copy_in(&self, offset: usize, data: &[u8]) {
        for (word, bytes) in self.words()[offset / 8..].iter().zip(data.chunks(8)) {
            word.store(u64::from_ne_bytes(hwspec::layout::prefix(bytes)), Ordering::Relaxed);
        }
    }

    /// Copies from byte `offset` (a multiple of 8).
    pub fn copy_out(&self, offset: usize, data: &mut [u8]) {
        for (word, bytes) in self.words()[offset / 8..].iter().zip(data.chunks_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..bytes.len()]);
        }
    }
}

impl Drop for DmaMem {
    fn drop(&mut self) {
        let block = DmaBlock { ptr: self.block.ptr, iova: self.block.iova, len: self.block.len };
        match &self.drop {
            OnDrop::Return(buffers) => match self.transport.dma_unmap(block.iova, block.len) {
                Ok(()) => buffers.give_back(block.ptr),
                // The memory is kept, since the device may still access it.
                Err(error) => tracing::warn!(%error, "memory of the caller's could not be given back"),
            },
            OnDrop::Free => self.transport.dma_free(block),
            OnDrop::Detach => self.transport.dma_detach(block),
            OnDrop::Keep => {}
        }
    }
}

/// Returns the page list of `len` bytes at `iova`: log2 of the page size relative to 4096, and the smallest set of
/// pages that covers the range.
pub fn page_list(iova: Iova, len: usize) -> (u8, Vec<u64>) {
    let span = (len.max(1) as u64).next_power_of_two().trailing_zeros();
    let shift = iova.trailing_zeros().min(span.max(12)).min(30);
    let pages = (len.max(1) as u64).div_ceil(1 << shift);
    ((shift - 12) as u8, (0..pages).map(|page| iova + (page << shift)).collect())
}

/// Returns start and length of the whole pages, of `page` bytes each, that hold `len` bytes at `addr`.
fn whole_pages(addr: *mut u8, len: usize, page: usize) -> Result<(*mut u8, usize), Error> {
    let lead = addr as usize % page;
    let whole = lead
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(page))
        .filter(|whole| (addr as usize - lead).checked_add(*whole).is_some())
        .ok_or_else(|| Error::invalid(format!("{len} bytes at {addr:p} run past the end of memory")))?;
    Ok((addr.wrapping_sub(lead), whole))
}

/// Memory of the caller that the device may access until [`UserMapping::unmap`] or drop.
pub struct UserMapping {
    transport: Arc<dyn Transport>,
    base: Iova,
    len: usize,
    paged: bool,
    /// IOVA of the first byte requested.
    pub iova: Iova,
}

impl UserMapping {
    /// Maps the pages that hold `len` bytes at `addr`.
    /// # Safety
    /// The caller guarantees that the range stays mapped in this process as long as this value lives. The device may
    /// change it at any time.
    pub unsafe fn map(
        transport: &Arc<dyn Transport>,
        addr: *mut u8,
        len: usize,
        writable: bool,
    ) -> Result<Self, Error> {
        let (first, whole) = whole_pages(addr, len, transport.page_size())?;
        let access = crate::transport::Access { read: true, write: writable, exact: whole == len };
        let lead = addr as usize - first as usize;
        // SAFETY: the caller's guarantee; pages are whole.
        let base = unsafe { transport.dma_map(first, whole, access) }
            .map_err(Error::io("cannot let the device reach the memory"))?;
        Ok(Self { transport: transport.clone(), base, len: whole, paged: false, iova: base + lead as u64 })
    }

    /// Like [`UserMapping::map`], for memory with pages that may come and go.
    /// # Safety
    /// The device may change what is mapped in the range at any time as long as this value lives.
    pub unsafe fn map_paged(
        transport: &Arc<dyn Transport>,
        addr: *mut u8,
        len: usize,
    ) -> Result<Self, Error> {
        let (first, whole) = whole_pages(addr, len, transport.page_size())?;
        let lead = addr as usize - first as usize;
        // SAFETY: the caller's guarantee.
        let base = unsafe { transport.dma_map_paged(first, whole) }
            .map_err(Error::io("cannot let the device reach memory on demand"))?;
        Ok(Self { transport: transport.clone(), base, len: whole, paged: true, iova: base + lead as u64 })
    }

    fn end(&self) -> std::io::Result<()> {
        match self.paged {
            true => self.transport.dma_unmap_paged(self.base, self.len),
            false => self.transport.dma_unmap(self.base, self.len),
        }
    }

    /// Ends the mapping, and returns the result.
    pub fn unmap(self) -> Result<(), Error> {
        let this = std::mem::ManuallyDrop::new(self);
        let result = this.end();
        // SAFETY: `this` is never used again, and its destructor does not run.
        drop(unsafe { std::ptr::read(&this.transport) });
        result.map_err(Error::io("cannot end the device's access to memory"))
    }

    /// Keeps the mapping forever, because the device has not confirmed that it no longer uses it.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for UserMapping {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(iova = self.base, len = self.len, %error, "a mapping for the device could not be ended");
        }
    }
}

/// Copies inline data from the caller's buffer at `addr`. [`SendBatch::push`](crate::SendBatch::push) is where the caller guarantees that the
/// buffer is readable.
#[inline]
pub(crate) fn copy_from_caller(addr: u64, out: &mut [u8]) {
    if !out.is_empty() {
        // SAFETY: the guarantee above; the destination is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) }
    }
}

/// Returns up to [`FEW`] bytes of the caller's memory at `addr` as a little-endian number. The number is then written
/// with a single store, so that a later load of the whole can be store-forwarded; this would fail for bytes assembled
/// in memory.
#[inline(always)]
pub(crate) fn few_from_caller(addr: u64, len: usize) -> u128 {
    debug_assert!(len <= FEW);
    let at = addr as *const u8;
    // SAFETY: the guarantee above; every load lies within the `len` bytes.
    unsafe {
        let two = |by: usize| u128::from(u16::from_le(at.add(by).cast::<u16>().read_unaligned())) << (8 * by);
        let four =
            |by: usize| u128::from(u32::from_le(at.add(by).cast::<u32>().read_unaligned())) << (8 * by);
        let eight =
            |by: usize| u128::from(u64::from_le(at.add(by).cast::<u64>().read_unaligned())) << (8 * by);
        match len {
            0 => 0,
            1 => at.read().into(),
            2..=3 => two(0) | two(len - 2),
            4..=7 => four(0) | four(len - 4),
            _ => eight(0) | eight(len.min(FEW) - 8),
        }
    }
}

/// Maximum length for [`few_from_caller`].
pub(crate) const FEW: usize = 16;

/// Copies received data into the caller's buffer at `addr`, as the device does with data that does not come in the CQE.
/// By [`Device::receive_in_cqes`](crate::Device::receive_in_cqes) the caller guarantees that the buffers of receives exist.
#[inline]
pub(crate) fn copy_to_caller(addr: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: the guarantee above; the source is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) }
    }
}

/// Like [`copy_to_caller`], where pages may be missing: the kernel populates them, as it would for a device with page
/// faults. Returns false if there is no writable memory.
#[cold]
pub(crate) fn copy_where_mapped(addr: u64, bytes: &[u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: both vectors live through the call; the kernel itself checks that `remote` is writable.
    let done =
        unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if done < 0 && matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
    {
        copy_to_caller(addr, bytes);
        return true;
    }
    done == bytes.len() as isize
}

#[cfg(test)]
mod tests {
    use super::{page_list, whole_pages};

    #[test]
    fn memory_is_mapped_in_whole_pages_of_the_host() {
        let of = |page| {
            whole_pages(0x12_3456 as *mut u8, 0x1000, page).map(|(at, len)| (at as usize, len)).unwrap()
        };
        assert_eq!(of(0x1000), (0x12_3000, 0x2000));
        assert_eq!(of(0x1_0000), (0x12_0000, 0x1_0000));
        assert!(whole_pages(usize::MAX as *mut u8, 2, 0x1_0000).is_err());
    }

    #[test]
    fn page_list_is_as_short_as_the_alignment_allows() {
        assert_eq!(page_list(0x1000, 0x1000), (0, vec![0x1000]));
        assert_eq!(page_list(0x10_0000, 0x4000), (2, vec![0x10_0000]));
        assert_eq!(page_list(0x3000, 0x3000), (0, vec![0x3000, 0x4000, 0x5000]));
        assert_eq!(page_list(0x2000, 0x3000), (1, vec![0x2000, 0x4000]));
    }
}
