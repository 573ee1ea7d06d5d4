//! The driver connected to the model in one process, in logical time, over a wire with a fault plan.
#![allow(unsafe_code)] // the two crates meet at raw memory: the driver's buffers are the chip's host memory

use devmodel::{
    Adapter, Config,
    engine::{
        Link, Runner, TextError, Verdict,
        faults::{FaultPlan, FaultWire},
    },
    host::{Abort, Alone, Bus, Iova, Rid, forward},
    identity,
    pcie::MsixMessage,
    region::{Func, FunctionSet, Geometry, Origin, Region},
    serve::store,
};
use driver::{
    Device, Error, OpenOptions,
    transport::{Access, Bar, Combining, DmaBlock, Interrupt, Registers, Scope, Transport, Width},
};
use hwspec::{doorbell::UAR_SHIFT, pcie::SRIOV_CAP, wire::ip::gid_of_v4};
use std::{
    alloc::Layout,
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{Ordering::Acquire, fence},
    },
};

/// Bytes of the area shared by openers.
const SHARED: usize = 64 << 10;

/// The memory of this process that is mapped for functions.
#[derive(Default)]
pub struct Mapped {
    /// Ranges of bus addresses by function, end and start: the memory address, and the number of mappings.
    ranges: BTreeMap<(u8, u64, u64), (u64, usize)>,
}

impl Mapped {
    fn reach(&self, rid: Rid, at: Iova, len: usize) -> Option<*mut u8> {
        let end = at.checked_add(len as u64)?;
        let mut of_function = self.ranges.range((rid.0, end, 0)..(rid.0, u64::MAX, u64::MAX));
        let ((_, _, start), (memory, _)) = of_function.find(|((_, _, start), _)| *start <= at)?;
        Some((memory + (at - start)) as *mut u8)
    }
    /// Maps `len` bytes of this process at `memory` to bus address `at` of function `fid`.
    ///
    /// # Safety
    /// The memory stays mapped in this process until it is unmapped here; until then the device may change it at any time.
    pub unsafe fn map(&mut self, fid: u8, at: Iova, memory: u64, len: usize) {
        self.ranges.entry((fid, at + len as u64, at)).or_insert((memory, 0)).1 += 1;
    }
    /// Removes one such mapping.
    pub fn unmap(&mut self, fid: u8, at: u64, len: usize) {
        let key = (fid, at + len as u64, at);
        if let Some((_, times)) = self.ranges.get_mut(&key) {
            *times -= 1;
            if *times == 0 {
                self.ranges.remove(&key);
            }
        }
    }
    /// Returns true if nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl Bus for Mapped {
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        let from = self.reach(rid, at, buf.len()).ok_or(Abort::Source)?;
        // SAFETY: the range was mapped by its owner, which keeps it. The driver has stored what the device may read before it rang.
        unsafe { std::ptr::copy(from, buf.as_mut_ptr(), buf.len()) };
        fence(Acquire);
        Ok(())
    }
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        let to = self.reach(rid, at, data.len()).ok_or(Abort::Destination)?;
        // SAFETY: as in `read`. The driver reads what the device writes once the last byte, that of a CQE's owner, is there.
        unsafe { store(data.as_ptr(), to, data.len()) };
        Ok(())
    }
}

/// The machine as seen by the chip: memory, and the eventfds of its interrupts.
#[derive(Default)]
struct Process {
    mapped: Mapped,
    eventfds: BTreeMap<(u8, u16), OwnedFd>,
}

impl Bus for Process {
    forward! { self.mapped:
        fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort>;
        fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort>;
    }
    fn msix(&mut self, rid: Rid, vector: u16, _address: u64, _data: u32) {
        if let Some(fd) = self.eventfds.get(&(rid.0, vector)) {
            let one = 1u64;
            // SAFETY: eight bytes, the size of an eventfd's counter.
            unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

impl Alone for Process {}

/// A frame and its sender.
type Frame = (u8, Vec<u8>);

/// The frames that functions have sent since the fault plan last saw them.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<Frame>>>);

impl Link for Sent {
    fn transmit(&mut self, from: u8, frame: &mut Vec<u8>, _: &mut Vec<Vec<u8>>) -> Verdict {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((from, std::mem::take(frame)));
        Verdict::Drop
    }
}

/// A wire with faults: frames go from functions to the plan, and from there to their receivers.
struct Faulty {
    sent: Sent,
    wire: FaultWire,
}

struct Inner {
    adapter: Adapter,
    runner: Runner,
    process: Process,
    now: u64,
    faulty: Option<Faulty>,
    /// Time stands still while programs poll, and moves by [`Machine::advance`] only.
    held: bool,
    unplugged: FunctionSet,
    blocks: BTreeMap<u64, (u8, Layout)>,
    shared: BTreeMap<u8, u64>,
    combined: usize,
}

impl Inner {
    /// Runs every function that has work, and takes frames through the plan. Returns false if nothing moved.
    fn round(&mut self) -> bool {
        let Self { adapter, runner, process, now, faulty, .. } = self;
        let mut any = false;
        for fid in 0..adapter.region().functions() {
            let due =
                adapter.has_work(fid, *now) || timer_of(adapter, process, fid).is_some_and(|at| at <= *now);
            if due {
                runner.run(adapter, process, *now, fid);
                any = true;
            }
        }
        let Some(Faulty { sent, wire }) = faulty else { return any };
        for (from, frame) in std::mem::take(&mut *sent.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            wire.enter(adapter, Origin { from: Some(from), now: *now }, frame);
        }
        let leaving = wire.leave(*now);
        runner.bring_on(
            adapter,
            process,
            *now,
            leaving.iter().map(|(from, frame)| (*from, frame.as_slice())),
        );
        any || !leaving.is_empty()
    }

    /// Time of the next timer or delayed frame.
    fn next(&mut self) -> Option<u64> {
        let Self { adapter, process, faulty, .. } = self;
        let timers = (0..adapter.region().functions()).filter_map(|fid| timer_of(adapter, process, fid));
        timers.chain(faulty.as_ref().and_then(|faulty| faulty.wire.next())).min()
    }

    /// Runs the model, or moves time on to the next timer, at most to `limit`. Returns false if there is nothing to wait for.
    fn advance(&mut self, limit: Option<u64>) -> bool {
        let moved = self.round();
        let next = if moved { Some(self.now) } else { self.next().into_iter().chain(limit).min() };
        self.now = next.unwrap_or(0).max(self.now);
        next.is_some()
    }
}

fn timer_of(adapter: &Adapter, process: &mut Process, fid: u8) -> Option<u64> {
    Func::try_lock(adapter.region(), fid, process)?.next_timer()
}

/// A machine with one adapter. When a program polls, finds nothing, and the chip has no work, time moves on to the next timer.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<Inner>>);

impl Machine {
    /// Creates a machine with a small adapter that has `vfs` VFs.
    pub fn new(vfs: u8, config: Config) -> Self {
        Self::with(Geometry { functions: vfs + 1, ..Geometry::SMALL }, config)
    }

    /// Creates a machine with an adapter of this size.
    pub fn with(geometry: Geometry, config: Config) -> Self {
        let vfs = geometry.functions - 1;
        let mut process = Process::default();
        let adapter = Adapter::power_on(Region::private(geometry), config, &mut process);
        let mut runner = Runner::new();
        for (offset, value) in [(SRIOV_CAP + 0x10, u32::from(vfs)), (SRIOV_CAP + 0x08, 0x9)] {
            adapter.config_write(&mut runner, &mut process, 0, 0, offset, 4, value);
        }
        let (blocks, shared) = Default::default();
        Self(Arc::new(Mutex::new(Inner {
            adapter,
            runner,
            process,
            now: 0,
            faulty: None,
            held: false,
            unplugged: 0,
            blocks,
            shared,
            combined: 0,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `plan` to frames from now on.
    ///
    /// # Errors
    /// It has faults of memory or programs rather than of frames.
    pub fn inject(&self, plan: FaultPlan) -> Result<(), TextError> {
        let mut inner = self.inner();
        let faulty = Faulty { sent: Sent::default(), wire: FaultWire::new(plan, inner.now)? };
        inner.runner.set_link(Some(Box::new(faulty.sent.clone())));
        inner.faulty = Some(faulty);
        Ok(())
    }

    /// Lets time stand still while programs poll.
    pub fn hold(&self) {
        self.inner().held = true;
    }

    /// Runs the model, or moves time on to the next timer, at most to `limit` (in picoseconds). Returns false if there is nothing to wait
    /// for.
    pub fn advance(&self, limit: Option<u64>) -> bool {
        self.inner().advance(limit)
    }

    /// Pulls function `fid` out: its driver finds it gone.
    pub fn unplug(&self, fid: u8) {
        let inner = &mut *self.inner();
        inner.unplugged |= 1 << fid;
        inner.adapter.reset(&mut inner.process, fid);
    }

    /// Returns true if both are the same machine.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the logical time in picoseconds.
    pub fn now(&self) -> u64 {
        self.inner().now
    }

    /// Returns the transport of function `fid` for the driver.
    pub fn function(&self, fid: u8) -> Arc<dyn Transport> {
        Arc::new(Slot { machine: self.clone(), fid, combines: false })
    }

    /// Opens function `fid` with the driver.
    pub fn open(&self, fid: u8) -> Result<Arc<Device>, Error> {
        Self::bring_up(self.function(fid), fid)
    }

    /// The same, with doorbell pages that are declared write-combining.
    pub fn open_combining(&self, fid: u8) -> Result<Arc<Device>, Error> {
        Self::bring_up(Arc::new(Slot { machine: self.clone(), fid, combines: true }), fid)
    }

    /// Returns the number of stores to such doorbell pages.
    pub fn combined(&self) -> usize {
        self.inner().combined
    }

    fn bring_up(transport: Arc<dyn Transport>, fid: u8) -> Result<Arc<Device>, Error> {
        let gids = vec![identity::link_local_gid(0, fid), gid_of_v4([127, 0, 0, fid + 1])];
        let options = OpenOptions { gids, eq_entries: 256, ..OpenOptions::default() };
        Device::open(transport, options)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (at, (_, layout)) in std::mem::take(&mut self.blocks) {
            // SAFETY: allocated in `block` with this layout, and no user of it is left.
            unsafe { std::alloc::dealloc(at as *mut u8, layout) };
        }
    }
}

/// A function, as accessed by the driver.
struct Slot {
    machine: Machine,
    fid: u8,
    combines: bool,
}

/// A doorbell page of a function; the adapter sees its stores one by one.
struct Page {
    slot: Slot,
    at: u32,
}

impl Combining for Slot {
    fn page(&self, uar: u32) -> io::Result<Bar> {
        let slot = Slot { machine: self.machine.clone(), ..*self };
        Ok(Bar::Trapped(Arc::new(Page { slot, at: uar << UAR_SHIFT })))
    }
}

impl Registers for Page {
    fn read32(&self, offset: u32) -> u32 {
        self.slot.read32(self.at + offset)
    }
    fn write32(&self, offset: u32, value: u32) {
        self.slot.write32(self.at + offset, value);
    }
    fn write64(&self, offset: u32, value: u64) {
        self.slot.machine.inner().combined += 1;
        self.slot.write64(self.at + offset, value);
    }
}

impl Slot {
    fn is_unplugged(&self, inner: &Inner) -> bool {
        inner.unplugged & 1 << self.fid != 0
    }

    fn block(&self, inner: &mut Inner, len: usize) -> io::Result<DmaBlock> {
        let layout = Layout::from_size_align(len.next_multiple_of(4096).max(4096), 4096)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        // SAFETY: the size is not zero.
        let ptr =
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory)?;
        let iova = ptr.as_ptr() as u64;
        inner.blocks.insert(iova, (self.fid, layout));
        // SAFETY: the block was just allocated, and is unmapped before it is freed; its owner accesses it by atomics (`Transport`).
        unsafe { inner.process.mapped.map(self.fid, iova, iova, layout.size()) };
        Ok(DmaBlock { ptr, iova, len })
    }
}

// SAFETY: blocks lie in the memory of the process, and are never freed.
unsafe impl Transport for Slot {
    fn config_read(&self, offset: u16, width: Width) -> io::Result<u32> {
        let Inner { adapter, process, .. } = &mut *self.machine.inner();
        Ok(adapter.config_read(process, self.fid, offset.into(), width.bytes()))
    }
    fn config_write(&self, offset: u16, width: Width, value: u32) -> io::Result<()> {
        let Inner { adapter, runner, process, now, .. } = &mut *self.machine.inner();
        adapter.config_write(runner, process, *now, self.fid, offset.into(), width.bytes(), value);
        Ok(())
    }
    fn bar(&self, index: u8) -> io::Result<Bar> {
        match index {
            0 => Ok(Bar::Trapped(Arc::new(Slot { machine: self.machine.clone(), ..*self }))),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
    fn combining(&self) -> Option<Arc<dyn Combining>> {
        self.combines.then(|| Arc::new(Slot { machine: self.machine.clone(), ..*self }) as Arc<dyn Combining>)
    }
    unsafe fn dma_map(&self, base: *mut u8, len: usize, _access: Access) -> io::Result<Iova> {
        // SAFETY: the caller's guarantee.
        unsafe { self.machine.inner().process.mapped.map(self.fid, base as u64, base as u64, len) };
        Ok(base as u64)
    }
    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.machine.inner().process.mapped.unmap(self.fid, iova, len);
        Ok(())
    }
    fn dma_alloc(&self, len: usize, _scope: Scope) -> io::Result<DmaBlock> {
        self.block(&mut self.machine.inner(), len)
    }
    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        let inner = self.machine.inner();
        let block = inner.blocks.get(&iova).filter(|(fid, layout)| *fid == self.fid && len <= layout.size());
        let (ptr, _) = NonNull::new(iova as *mut u8).zip(block).ok_or(io::ErrorKind::NotFound)?;
        Ok(DmaBlock { ptr, iova, len })
    }
    fn dma_free(&self, block: DmaBlock) {
        let mut inner = self.machine.inner();
        if let Some((fid, layout)) = inner.blocks.remove(&block.iova) {
            inner.process.mapped.unmap(fid, block.iova, layout.size());
            // SAFETY: allocated in `block` with this layout; its owner gives it back.
            unsafe { std::alloc::dealloc(block.ptr.as_ptr(), layout) };
        }
    }
    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        let interrupt = Interrupt::new()?;
        let ours = interrupt.as_fd().try_clone_to_owned()?;
        let Inner { adapter, process, .. } = &mut *self.machine.inner();
        process.eventfds.insert((self.fid, vector), ours);
        adapter.msix_program(
            process,
            self.fid,
            vector,
            Some(MsixMessage { address: 0xfee0_0000, data: vector.into() }),
        );
        Ok(interrupt)
    }
    fn reset(&self) -> io::Result<()> {
        let Inner { adapter, process, .. } = &mut *self.machine.inner();
        adapter.reset(process, self.fid);
        Ok(())
    }
    fn shared(&self) -> io::Result<DmaBlock> {
        let mut inner = self.machine.inner();
        if let Some(at) = inner.shared.get(&self.fid) {
            let ptr = NonNull::new(*at as *mut u8).ok_or(io::ErrorKind::NotFound)?;
            return Ok(DmaBlock { ptr, iova: *at, len: SHARED });
        }
        let block = self.block(&mut inner, SHARED)?;
        inner.shared.insert(self.fid, block.iova);
        Ok(block)
    }
    fn idle(&self) {
        let mut inner = self.machine.inner();
        if inner.held {
            inner.round();
        } else {
            inner.advance(None);
        }
    }
    fn is_gone(&self) -> bool {
        self.is_unplugged(&self.machine.inner())
    }
    fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]> {
        let functions = self.machine.inner().adapter.region().functions();
        (0..functions).find(|fid| gid_of_v4([127, 0, 0, fid + 1]) == *dgid).map(|fid| identity::mac(0, fid))
    }
}

impl Registers for Slot {
    fn read32(&self, offset: u32) -> u32 {
        let inner = &mut *self.machine.inner();
        if self.is_unplugged(inner) {
            return u32::MAX;
        }
        let Inner { adapter, process, now, .. } = inner;
        adapter.bar_read32(process, *now, self.fid, offset.into())
    }
    fn write32(&self, offset: u32, value: u32) {
        let inner = &mut *self.machine.inner();
        if !self.is_unplugged(inner) {
            let Inner { adapter, runner, process, now, .. } = inner;
            adapter.bar_write32(runner, process, *now, self.fid, offset.into(), value);
        }
    }
    fn write64(&self, offset: u32, value: u64) {
        let inner = &mut *self.machine.inner();
        if !self.is_unplugged(inner) {
            let Inner { adapter, runner, process, now, .. } = inner;
            adapter.bar_write64(runner, process, *now, self.fid, offset.into(), value);
        }
    }
}
