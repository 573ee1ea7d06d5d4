//! The driver's view of the node's adapter: `Transport` for one function.

use super::{
    NodeError,
    arena::{Arena, Owner},
    beside,
    core::Core,
    file::{PAGE, VECTORS},
    interrupts::Listener,
    memory,
    node::Node,
    party,
    patience::Seen,
    room, sys,
};
use crate::gid::ip_of_gid;
use devmodel::{
    pcie::MsixMessage,
    region::{Sync, WireRing},
};
use driver::transport::{Access, Bar, DmaBlock, Interrupt, Iova, Kept, Registers, Scope, Transport, Width};
use hwspec::doorbell::{BF_OFFSET, CQ_DOORBELL, UAR_SIZE};
use std::{
    io,
    sync::{Arc, atomic::Ordering::*},
    time::Duration,
};

/// Size in bytes of the block that the openers of a function share.
const SHARED_LEN: usize = 64 << 10;
/// Checks for a frame per poll. A program's own code between two polls takes as long as several dozen checks.
const LOOKS: u32 = 48;
/// Empty polls per check of timers.
const POLLS_PER_LOOK: u32 = 32;
/// Timer checks per yield of the processor.
const LOOKS_PER_YIELD: u32 = 8;
/// Address of the function's MSI-X messages. No bus carries them: the host routes vectors by number.
const MESSAGE_ADDRESS: u64 = 0xfee0_0000;

/// A function of a node.
pub struct NodeTransport {
    registers: Arc<Function>,
    core: Arc<Core>,
}

struct Function {
    core: Arc<Core>,
    fid: u8,
    /// Identifies this opener's eventfds.
    listener: Listener,
    /// Keeps the adapter beside this one open.
    _user: beside::User,
    /// Keeps the node open as long as this exists.
    _node: Arc<Node>,
}

fn refused(error: NodeError) -> io::Error {
    match &error {
        NodeError::System { source, .. } => source
            .raw_os_error()
            .map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error),
        NodeError::NoRoom { .. } => io::Error::new(io::ErrorKind::OutOfMemory, error.to_string()),
        _ => io::Error::other(error.to_string()),
    }
}

/// Delay before another try to open a function that a stopped program holds.
const HELD_UP: Duration = Duration::from_millis(50);

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl NodeTransport {
    /// Opens function `fid` for one more user in this process.
    pub fn open(node: &Arc<Node>, fid: u8) -> Result<Self, NodeError> {
        let core = node.core();
        let vfs = node.vfs();
        if fid > vfs {
            return Err(NodeError::NoDevice { fid, vfs });
        }
        node.park()?;
        {
            let lock = core.locks.lock()?;
            core.reap_locked(&lock);
            room::room(&core.dir, room::RESERVE)?;
            core.not_served(fid)?;
            core.make_room_for(fid)?;
            if core.opens(fid).fetch_add(1, AcqRel) == 0 {
                core.enlist(fid, &lock);
            }
        }
        core.meet();
        core.introduce();
        let core = node.core.clone();
        let listener = core.interrupts.listener();
        let (_user, _node) = (node.begin_use(), node.clone());
        let registers = Arc::new(Function { core: core.clone(), fid, listener, _user, _node });
        Ok(Self { registers, core })
    }

    fn core(&self) -> &Core {
        &self.core
    }

    fn fid(&self) -> u8 {
        self.registers.fid
    }

    /// Fails in forked children, because memory and interrupts belong to their parent, and in processes that lost the node.
    fn ours(&self) -> io::Result<&Core> {
        match self.core() {
            core if !core.is_ours() => Err(errno(libc::ENODEV)),
            core if core.is_lost() => Err(errno(libc::ENOMEM)),
            core => Ok(core),
        }
    }

    fn block(&self, page: u32, len: usize) -> io::Result<DmaBlock> {
        let offset = u64::from(page) * PAGE as u64;
        let ptr = self.core().map.reach_arena(offset, len)?.ok_or_else(|| errno(libc::EINVAL))?;
        Ok(DmaBlock { ptr, iova: memory::arena_iova(offset), len })
    }

    /// Frees the arena block that begins at `page`.
    fn free(core: &Core, page: u32) {
        if let Ok(lock) = core.locks.lock() {
            Arena::new(&core.map, &lock).free(page);
        }
    }

    /// The first page of the arena block at `iova`.
    fn page_of(iova: Iova) -> Option<u32> {
        let offset = memory::arena_offset(iova).filter(|o| o % PAGE as u64 == 0)?;
        u32::try_from(offset / PAGE as u64).ok()
    }

    /// Called after an empty poll: runs this function if it has work.
    #[inline(always)]
    fn poll(&self, core: &Core) {
        let (region, fid) = (core.adapter.region(), self.fid());
        let doorbells = core.doorbells(fid);
        let streak = doorbells.note_empty_poll();
        if doorbells.end_row() && core.is_ours() {
            core.flush_coalesced(fid);
        }
        // `black_box` prevents unrolling of the loop, which would take up a thirtieth of the L1 instruction cache.
        let looks = std::hint::black_box(LOOKS);
        if WireRing::of(region, fid).awaits(looks) || region.sync(fid, Sync::Ready).load(Relaxed) != 0 {
            return self.work(core, streak);
        }
        if streak % POLLS_PER_LOOK == 0 {
            self.look_around(core, streak);
        }
    }

    /// Runs this function, which has work.
    #[inline(never)]
    fn work(&self, core: &Core, streak: u32) {
        if core.is_ours() && !core.is_lost() {
            core.run_busy(core.now(), self.fid());
        }
        if streak % POLLS_PER_LOOK == 0 {
            self.look_around(core, streak);
        }
    }

    #[cold]
    fn look_around(&self, core: &Core, streak: u32) {
        if !core.is_ours() || core.is_lost() {
            return;
        }
        let now = core.now();
        core.persevere(self.fid(), streak, now);
        let mut left = core.take_left();
        while left != 0 {
            core.run(now, left.trailing_zeros() as u8);
            left &= left - 1;
        }
        if core.adapter.region().timer_due(self.fid(), now) {
            core.run(now, self.fid());
        }
        let seen = Seen {
            fid: self.fid(),
            taken: core.adapter.region().sync(self.fid(), Sync::RxHead).load(Relaxed),
            rang: core.doorbells(self.fid()).empty_polls_at_doorbell(),
        };
        let naps = core.polling.patience.look(seen, || core.now());
        if !naps && streak / POLLS_PER_LOOK % LOOKS_PER_YIELD == 0 {
            // There are more pollers than processors: the program that can make progress must get to run.
            sys::yield_now();
        }
        core.sweep(now);
    }
}

impl Registers for Function {
    fn read32(&self, offset: u32) -> u32 {
        let core = &*self.core;
        if !core.is_ours() || core.is_lost() {
            return u32::MAX;
        }
        let now = core.now();
        core.touch(now, self.fid, |_, host| core.adapter.bar_read32(host, now, self.fid, offset.into()))
    }

    fn write32(&self, offset: u32, value: u32) {
        let core = &*self.core;
        if !core.is_ours() || core.is_lost() {
            return;
        }
        if let Some(board) = core.board() {
            if core.ring_half_in_time(board, self.fid, offset, value) {
                return;
            }
            core.let_doorbells_arrive(board);
        }
        core.doorbells(self.fid).note_doorbell();
        core.flush(self.fid);
        let now = core.now();
        core.touch(now, self.fid, |runner, host| {
            core.adapter.bar_write32(runner, host, now, self.fid, offset.into(), value);
        });
    }

    #[inline]
    fn write64(&self, offset: u32, value: u64) {
        let core = &*self.core;
        if !core.is_ours() || core.is_lost() {
            return;
        }
        if let Some(board) = core.board() {
            if core.ring_in_time(board, self.fid, offset, value) {
                return;
            }
        }
        let doorbells = core.doorbells(self.fid);
        if doorbells.note_doorbell() {
            self.poll_on();
        }
        match offset as usize % UAR_SIZE {
            BF_OFFSET.. if core.coalesce(self.fid, offset, value) => return,
            BF_OFFSET.. => {}
            register => self.before_another(register),
        }
        core.ring(self.fid, offset, value);
    }
}

impl Function {
    /// Records that the program polls continuously.
    #[cold]
    fn poll_on(&self) {
        self.core.poll_on(self.fid, self.core.now());
    }

    /// Called before a write to any register but the send doorbell.
    #[inline(never)]
    fn before_another(&self, register: usize) {
        self.core.flush(self.fid);
        if register == CQ_DOORBELL {
            // A program that arms a CQ is about to sleep.
            self.core.stop_polling(self.fid);
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let core = &*self.core;
        // A program that has lost the node leaves it when the process exits.
        if !core.is_ours() || core.is_lost() {
            return;
        }
        match core.locks.lock() {
            Ok(lock) => {
                core.stop_listening(self.fid, self.listener, Some(&lock));
                if core.opens(self.fid).fetch_sub(1, AcqRel) == 1 {
                    // A removal that a stopped program prevents is completed after this process has exited.
                    let _ = core.strike(core.me.slot, self.fid, &lock);
                }
            }
            Err(error) => {
                core.stop_listening(self.fid, self.listener, None);
                tracing::warn!(%error, "the function stays open until this process ends");
            }
        }
    }
}

fn width(width: Width) -> usize {
    match width {
        Width::B1 => 1,
        Width::B2 => 2,
        Width::B4 => 4,
    }
}

#[allow(unsafe_code)] // passes on the caller's promise
// SAFETY: blocks lie in the mapped windows of the node, which stay for the process, and are allocated once; the model reads the table of mappings at each access.
unsafe impl Transport for NodeTransport {
    fn config_read(&self, offset: u16, w: Width) -> io::Result<u32> {
        let core = self.ours()?;
        let fid = self.fid();
        Ok(core
            .touch(core.now(), fid, |_, host| core.adapter.config_read(host, fid, offset.into(), width(w))))
    }

    fn config_write(&self, offset: u16, w: Width, value: u32) -> io::Result<()> {
        let core = self.ours()?;
        let now = core.now();
        core.touch(now, self.fid(), |runner, host| {
            core.adapter.config_write(runner, host, now, self.fid(), offset.into(), width(w), value);
        });
        Ok(())
    }

    fn bar(&self, index: u8) -> io::Result<Bar> {
        match index {
            0 => Ok(Bar::Trapped(self.registers.clone())),
            _ => Err(errno(libc::ENXIO)),
        }
    }

    unsafe fn dma_map(&self, base: *mut u8, len: usize, access: Access) -> io::Result<Iova> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.ours()?.register(base, len, access) }
    }

    fn dma_unmap(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.ours()?.unregister(iova, len)
    }

    fn pages_on_demand(&self) -> bool {
        true
    }

    unsafe fn dma_map_paged(&self, base: *mut u8, len: usize) -> io::Result<Iova> {
        self.ours()?.register_paged(base, len)
    }

    fn dma_unmap_paged(&self, iova: Iova, len: usize) -> io::Result<()> {
        self.ours()?.unregister_paged(iova, len)
    }

    fn populate(&self, base: *mut u8, len: usize, write: bool) -> io::Result<()> {
        self.ours()?;
        memory::check_user_range(base, len, write)
    }

    fn dma_alloc(&self, len: usize, scope: Scope) -> io::Result<DmaBlock> {
        let core = self.ours()?;
        let owner = match scope {
            Scope::Function => Owner::Function(self.fid()),
            Scope::Opener => Owner::Party(core.me.slot),
        };
        let page = {
            let lock = core.locks.lock().map_err(refused)?;
            Arena::new(&core.map, &lock).alloc(len, owner, &core.dir).map_err(refused)?
        };
        self.block(page, len).inspect_err(|_| Self::free(core, page))
    }

    fn dma_free(&self, block: DmaBlock) {
        let Ok(core) = self.ours() else { return };
        Self::page_of(block.iova).into_iter().for_each(|page| Self::free(core, page));
    }

    fn dma_attach(&self, iova: Iova, len: usize) -> io::Result<DmaBlock> {
        let core = self.ours()?;
        let page = Self::page_of(iova).ok_or_else(|| errno(libc::EINVAL))?;
        let lock = core.locks.lock().map_err(refused)?;
        let arena = Arena::new(&core.map, &lock);
        let fits = arena.pages(page).is_some_and(|pages| len.div_ceil(PAGE) <= pages as usize);
        if !fits || !arena.belongs(page, Owner::Function(self.fid())) {
            return Err(errno(libc::EINVAL));
        }
        self.block(page, len)
    }

    fn interrupt(&self, vector: u16) -> io::Result<Interrupt> {
        let core = self.ours()?;
        if usize::from(vector) >= VECTORS {
            return Err(errno(libc::EINVAL));
        }
        let fd = sys::eventfd()?;
        let theirs = fd.try_clone()?;
        let lock = core.locks.lock().map_err(refused)?;
        core.listen(self.fid(), vector, self.registers.listener, Kept::new(fd)?, &lock)?;
        drop(lock);
        let message = MsixMessage { address: MESSAGE_ADDRESS, data: vector.into() };
        let fid = self.fid();
        core.touch(core.now(), fid, |_, host| core.adapter.msix_program(host, fid, vector, Some(message)));
        Interrupt::of(theirs)
    }

    fn shares_vectors(&self) -> bool {
        true
    }

    fn reset(&self) -> io::Result<()> {
        let core = self.ours()?;
        loop {
            let lock = core.locks.lock().map_err(refused)?;
            if self.fid() == 0 && core.vfs_in_use() {
                // A reset of the PF would reset VFs that programs are using.
                return Err(errno(libc::EBUSY));
            }
            if core.reset_function(self.fid(), &lock).is_ok() {
                return Ok(());
            }
            // A stopped program holds the function. Waits without the node's lock, so that others need not wait.
            drop(lock);
            std::thread::sleep(HELD_UP);
        }
    }

    fn shared(&self) -> io::Result<DmaBlock> {
        let core = self.ours()?;
        let known = &core.map.functions()[usize::from(self.fid())].shared;
        let lock = core.locks.lock().map_err(refused)?;
        let page = match known.load(Acquire).checked_sub(1) {
            Some(page) => page,
            None => {
                let arena = Arena::new(&core.map, &lock);
                let page =
                    arena.alloc(SHARED_LEN, Owner::Function(self.fid()), &core.dir).map_err(refused)?;
                known.store(page + 1, Release);
                page
            }
        };
        self.block(page, SHARED_LEN)
    }

    fn opener(&self) -> u32 {
        self.core().me.opener()
    }

    fn alive(&self, opener: u32) -> bool {
        let core = self.core();
        opener == core.me.opener() || party::is_there(&core.map, core.locks, opener)
    }

    #[inline]
    fn idle(&self) {
        // In virtual time, the conductor runs the model.
        if self.core().board().is_none() {
            self.poll(self.core());
        }
    }

    #[inline]
    fn empty_poll(&self) {
        let core = self.core();
        match core.board() {
            None => self.poll(core),
            Some(board) => core.rest(board, self.fid()),
        }
    }

    #[inline]
    fn noticed(&self) {
        if let Some(board) = self.core().board() {
            self.core().notice(board);
        }
    }

    /// The thread that rings the command doorbell executes the command itself and waits for the function's lock, unless the adapter's
    /// strictness takes time.
    fn acts_at_once(&self) -> bool {
        let strict = self.core().adapter.config().strict;
        !strict.pages && strict.slow == 0
    }

    #[inline]
    fn is_gone(&self) -> bool {
        self.core().is_lost()
    }

    fn resolve(&self, dgid: &[u8; 16]) -> Option<[u8; 6]> {
        let core = self.ours().ok()?;
        let region = core.adapter.region();
        let there = |fid: u8| fid < region.functions() && region.is_present(fid);
        if let Some(device) = core.devices().find(|d| d.gids.contains(dgid) && there(d.fid)) {
            return Some(device.mac);
        }
        // Reads without the functions' locks, which a stopped program may hold.
        let ours =
            (0..region.functions()).filter(|fid| there(*fid)).find_map(|fid| region.mac_with_gid(fid, dgid));
        // A link-local address contains the MAC.
        let is_outside = ours.is_none() && dgid[..2] != [0xfe, 0x80];
        ours.or_else(|| is_outside.then(|| core.neighbour(self.fid(), ip_of_gid(dgid))).flatten())
    }
}
