//! A transport that is listened to.
#![allow(unsafe_code)]

use crate::{
    file::Recorder,
    tap::{Memory, Tap},
};
use driver::transport::{Access, Bar, DmaBlock, Interrupt, Iova, Registers, Scope, Transport, Width};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

/// The driver's own blocks, by bus address.
#[derive(Default)]
struct Blocks(Mutex<BTreeMap<Iova, Block>>);

struct Block {
    len: usize,
    /// Where the driver sees it: never empty.
    views: Vec<*mut u8>,
}
// SAFETY: the pointers are only followed in `Blocks::read`, which is sound on any thread: see there.
unsafe impl Send for Block {}

impl Blocks {
    fn add(&self, block: &DmaBlock) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(block.iova).or_insert(Block { len: block.len, views: Vec::new() });
        known.len = known.len.min(block.len);
        known.views.push(block.ptr.as_ptr());
    }

    /// Forgets a block, which is freed for all. Called before that.
    fn free(&self, block: &DmaBlock) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&block.iova);
    }

    /// Forgets one view. Called before it ends.
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
            // SAFETY: `from + i` is below `len`, checked above, and the view is mapped: it stands in the table, from
            // which `free` and `detach` take it before the transport ends it, and `all` holds the table's lock. The
            // driver and the device touch it through atomics and by DMA only, as `driver::dma` says; so do we.
            *byte = unsafe { AtomicU8::from_ptr(view.add(from + i)) }.load(Relaxed);
        }
        true
    }
}

/// Registers whose writes are recorded.
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

/// A transport whose driver's stream is recorded. Work requests are found in rings of the driver's own memory
/// ([`Transport::dma_alloc`]), not in those that lie in a program's.
pub struct RecordingTransport {
    transport: Arc<dyn Transport>,
    tap: Arc<Tap>,
    blocks: Arc<Blocks>,
}

impl RecordingTransport {
    /// Records what goes through `transport` to the function, which the file calls `fid`.
    pub fn new(transport: Arc<dyn Transport>, fid: u8, recorder: Arc<Recorder>) -> Self {
        Self { transport, tap: Arc::new(Tap::new(recorder, fid)), blocks: Arc::default() }
    }

    fn seen(&self, block: io::Result<DmaBlock>) -> io::Result<DmaBlock> {
        block.inspect(|block| self.blocks.add(block))
    }
}

impl Transport for RecordingTransport {
    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32> {
        self.transport.config_read(offset, width)
    }
    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()> {
        self.transport.config_write(offset, width, value)
    }
    fn bar(&self, index: u8) -> io::Result<Bar> {
        let bar = self.transport.bar(index)?;
        Ok(match index {
            0 => Bar::Trapped(Arc::new(Tapped { bar, tap: self.tap.clone(), blocks: self.blocks.clone() })),
            _ => bar,
        })
    }
    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        // SAFETY: the caller's promise is handed on as it is.
        unsafe { self.transport.dma_map(base, len, access) }
    }
    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.transport.dma_unmap(iova, len)
    }
    fn pages_on_demand(&self) -> bool {
        self.transport.pages_on_demand()
    }
    fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        self.transport.dma_map_paged(base, len)
    }
    fn dma_unmap_paged(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.transport.dma_unmap_paged(iova, len)
    }
    fn populate(&self, base: *mut u8, len: usize, write: bool) -> io::Result<()> {
        self.transport.populate(base, len, write)
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
    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        self.transport.interrupt(vector)
    }
    fn shares_vectors(&self) -> bool {
        self.transport.shares_vectors()
    }
    fn reset(&self) -> io::Result<()> {
        self.tap.after(&*self.blocks);
        self.tap.reset();
        self.transport.reset()
    }
    fn shared(&self) -> io::Result<DmaBlock> {
        self.transport.shared()
    }
    fn opener(&self) -> u32 {
        self.transport.opener()
    }
    fn alive(&self, opener: u32) -> bool {
        self.transport.alive(opener)
    }
    fn idle(&self) {
        self.transport.idle();
    }
    fn nap(&self, time: Duration) {
        self.transport.nap(time);
    }
    fn acts_at_once(&self) -> bool {
        self.transport.acts_at_once()
    }
    fn is_gone(&self) -> bool {
        self.transport.is_gone()
    }
    fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]> {
        self.transport.resolve(dgid)
    }
}
