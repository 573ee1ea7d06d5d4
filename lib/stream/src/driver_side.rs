//! Recording of a driver's transport.
#![allow(unsafe_code)]

use crate::{
    file::Recorder,
    tap::{Memory, Tap},
};
use driver::transport::{
    Access, Bar, Combining, DmaBlock, Interrupt, Iova, Registers, Scope, Transport, Width, forward,
};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

/// The driver's own blocks, by IOVA.
#[derive(Default)]
struct Blocks(Mutex<BTreeMap<Iova, Block>>);

struct Block {
    len: usize,
    /// Addresses in the driver; never empty.
    views: Vec<*mut u8>,
}
// SAFETY: the pointers are only dereferenced in `Blocks::read`, which is sound on any thread, as explained there.
unsafe impl Send for Block {}

impl Blocks {
    fn add(&self, block: &DmaBlock) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(block.iova).or_insert(Block { len: block.len, views: Vec::new() });
        known.len = known.len.min(block.len);
        known.views.push(block.ptr.as_ptr());
    }

    /// Removes a block that is freed for all. Called before the free.
    fn free(&self, block: &DmaBlock) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&block.iova);
    }

    /// Removes one view. Called before it is unmapped.
    fn detach(&self, block: &DmaBlock) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = all.get_mut(&block.iova) else { return };
        if let Some(view) = known.views.iter().position(|view| *view == block.ptr.as_ptr()) {
            known.views.swap_remove(view);
        }
        if known.views.is_empty() {
            all.remove(&block.iova);
        }
    }
}

impl Memory for Blocks {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((iova, block)) = all.range(..=at).next_back() else { return false };
        let Ok(from) = usize::try_from(at - iova) else { return false };
        if from.checked_add(into.len()).is_none_or(|end| end > block.len) {
            return false;
        }
        let Some(view) = block.views.first() else { return false };
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: `from + i` is below `len`, as checked above, and the view is mapped: it is in the table, from
            // which `free` and `detach` remove it before the transport unmaps it, and `all` holds the table's lock.
            // Driver and device access it only through atomics and DMA (module `driver::dma`), and so does this.
            *byte = unsafe { AtomicU8::from_ptr(view.add(from + i)) }.load(Relaxed);
        }
        true
    }
}

/// Registers with recorded writes.
struct Tapped {
    bar: Bar,
    tap: Arc<Tap>,
    blocks: Arc<Blocks>,
}

impl Registers for Tapped {
    fn read32(&self, offset: u32) -> u32 {
        let value = self.bar.read32(offset);
        self.tap.read(&*self.blocks, offset.into(), value);
        value
    }
    fn write32(&self, offset: u32, value: u32) {
        self.tap.write(&*self.blocks, offset.into(), 4, value.into());
        self.bar.write32(offset, value);
        self.tap.after(&*self.blocks);
    }
    fn write64(&self, offset: u32, value: u64) {
        self.tap.write(&*self.blocks, offset.into(), 8, value);
        self.bar.doorbell(offset, value);
        self.tap.after(&*self.blocks);
    }
}

/// A transport that records the stream of its driver. Work requests are found in rings in the driver's own memory
/// ([`Transport::dma_alloc`]), not in rings in a program's memory.
pub struct RecordingTransport {
    transport: Arc<dyn Transport>,
    tap: Arc<Tap>,
    blocks: Arc<Blocks>,
}

impl RecordingTransport {
    /// Records accesses through `transport` to the function with number `fid` in the file.
    pub fn new(transport: Arc<dyn Transport>, fid: u8, recorder: Arc<Recorder>) -> Self {
        Self { transport, tap: Arc::new(Tap::new(recorder, fid)), blocks: Arc::default() }
    }

    fn seen(&self, block: io::Result<DmaBlock>) -> io::Result<DmaBlock> {
        block.inspect(|block| self.blocks.add(block))
    }
}

#[deny(clippy::missing_trait_methods)]
// SAFETY: all memory is that of the transport within.
unsafe impl Transport for RecordingTransport {
    fn bar(&self, index: u8) -> io::Result<Bar> {
        let bar = self.transport.bar(index)?;
        Ok(match index {
            0 => Bar::Trapped(Arc::new(Tapped { bar, tap: self.tap.clone(), blocks: self.blocks.clone() })),
            _ => bar,
        })
    }
    /// Not available: requests written to the device in such a page would bypass the recorded registers.
    fn combining(&self) -> Option<Arc<dyn Combining>> {
        None
    }
    unsafe fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { self.transport.dma_map_paged(base, len) }
    }
    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { self.transport.dma_map(base, len, access) }
    }
    fn dma_alloc(&self, len: usize, scope: Scope) -> io::Result<DmaBlock> {
        self.seen(self.transport.dma_alloc(len, scope))
    }
    fn dma_free(&self, block: DmaBlock) {
        self.tap.after(&*self.blocks);
        self.blocks.free(&block);
        self.transport.dma_free(block);
    }
    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        self.seen(self.transport.dma_attach(iova, len))
    }
    fn dma_detach(&self, block: DmaBlock) {
        self.tap.after(&*self.blocks);
        self.blocks.detach(&block);
        self.transport.dma_detach(block);
    }
    fn reset(&self) -> io::Result<()> {
        self.tap.after(&*self.blocks);
        self.tap.reset();
        self.transport.reset()
    }
    forward! { self.transport:
        fn config_read(&self, offset: u16, width: Width) -> io::Result<u32>;
        fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()>;
        fn page_size(&self) -> usize;
        fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()>;
        fn pages_on_demand(&self) -> bool;
        fn dma_unmap_paged(&self, iova: Iova, len: usize) -> io::Result<()>;
        fn populate(&self, base: *mut u8, len: usize, write: bool) -> io::Result<()>;
        fn interrupt(&self, vector: u16) -> io::Result<Interrupt>;
        fn shares_vectors(&self) -> bool;
        fn shared(&self) -> io::Result<DmaBlock>;
        fn opener(&self) -> u32;
        fn name(&self) -> Option<String>;
        fn alive(&self, opener: u32) -> bool;
        fn idle(&self);
        fn empty_poll(&self);
        fn nap(&self, time: Duration);
        fn acts_at_once(&self) -> bool;
        fn noticed(&self);
        fn is_gone(&self) -> bool;
        fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// A transport that overrides every default method with a different result. It counts empty polls and those
    /// followed by a completion.
    #[derive(Default)]
    struct Contrary(AtomicU32);

    impl Combining for Contrary {
        fn page(&self, _: u32) -> io::Result<Bar> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn none<T>() -> io::Result<T> {
        Err(io::ErrorKind::AddrInUse.into())
    }

    // SAFETY: it has no memory.
    unsafe impl Transport for Contrary {
        fn config_read(&self, _: u16, _: Width) -> io::Result<u32> {
            none()
        }
        fn config_write(&self, _: u16, _: Width, _: u32) -> io::Result<()> {
            none()
        }
        fn bar(&self, _: u8) -> io::Result<Bar> {
            none()
        }
        fn combining(&self) -> Option<Arc<dyn Combining>> {
            Some(Arc::new(Self::default()))
        }
        fn page_size(&self) -> usize {
            65536
        }
        unsafe fn dma_map(&self, _: *mut u8, _: usize, _: Access) -> io::Result<Iova> {
            none()
        }
        fn dma_unmap(&self, _: Iova, _: usize) -> io::Result<()> {
            none()
        }
        fn dma_alloc(&self, _: usize, _: Scope) -> io::Result<DmaBlock> {
            none()
        }
        fn dma_free(&self, _: DmaBlock) {}
        fn interrupt(&self, _: u16) -> io::Result<Interrupt> {
            none()
        }
        fn reset(&self) -> io::Result<()> {
            none()
        }
        fn shared(&self) -> io::Result<DmaBlock> {
            none()
        }
        fn opener(&self) -> u32 {
            1
        }
        fn name(&self) -> Option<String> {
            Some("contrary".into())
        }
        fn alive(&self, _: u32) -> bool {
            false
        }
        fn idle(&self) {}
        fn empty_poll(&self) {
            self.0.fetch_add(1, Relaxed);
        }
        fn noticed(&self) {
            self.0.fetch_add(16, Relaxed);
        }
        fn acts_at_once(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_recorded_function_has_its_name_its_pages_and_its_polls() {
        let file = std::env::temp_dir().join(format!("ironverbs-recorded-{}", std::process::id()));
        let recorder = Recorder::create(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let inner = Arc::new(Contrary::default());
        let recording = RecordingTransport::new(inner.clone(), 1, recorder);
        let transport: &dyn Transport = &recording;
        transport.empty_poll();
        transport.noticed();
        assert_eq!(inner.0.load(Relaxed), 17);
        assert_eq!((transport.name().as_deref(), transport.page_size()), (Some("contrary"), 65536));
        assert!(transport.acts_at_once() && transport.combining().is_none());
    }
}
