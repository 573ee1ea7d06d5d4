//! One process's state of a node, shared by all its threads.

use super::{
    NodeError,
    beside::Beside,
    clock::Clock,
    dir,
    doorbells::Doorbells,
    engine::Engines,
    file::{CLOSED, FUNCTIONS, Mapped, UNREACHED},
    interrupts::Interrupts,
    lent::Lent,
    locks::{LockFile, NodeLock},
    maps::Maps,
    party::{self, Me},
    party_set::PARTIES,
    pinned::Pinned,
    polling::Polling,
    room,
    suspects::Suspects,
    sys,
    waits::LastReport,
};
use ::clock::Board;
use devmodel::{Adapter, host::Party, missing::Mark, region::Outlet, serve::Guest};
use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*},
    },
};

/// Marks a party with memory that this process cannot access.
const OUT_OF_REACH: u32 = u32::MAX;
/// Picoseconds per millisecond.
pub const MILLI: u64 = 1_000_000_000;

/// A node, as seen by one process.
pub struct Core {
    /// The node's directory.
    pub dir: PathBuf,
    /// The mapping of the node's file.
    pub map: Arc<Mapped>,
    /// Set when the node is lost ([`Core::is_lost`]).
    lost: Arc<Mark>,
    /// The model of the adapter.
    pub adapter: Adapter,
    /// Locks by which programs find out which others are alive.
    pub locks: &'static LockFile,
    /// The slot of this process among the parties.
    pub me: Me,
    /// Ranges of this process's memory that drivers mapped for the device.
    pub maps: Maps,
    /// Ranges of this process's memory with pages that may come and go (on-demand paging).
    pub paged: Maps,
    /// Ranges of this process's memory that are lent to the arena.
    pub lent: Lent,
    /// Accounting of this process's registered memory.
    pub pinned: Pinned,
    /// Runners of this process.
    pub engines: Engines,
    /// True if this process never copies directly to or from the memory of other programs.
    no_direct: bool,
    /// For each party its generation and, in the low half, the process with memory that this process can access: 0 is not known yet,
    /// [`OUT_OF_REACH`] none.
    reach: Box<[AtomicU64]>,
    /// The interrupt vectors that this process listens to.
    pub interrupts: Interrupts,
    /// How often each function is open in this process.
    opens: Box<[AtomicU32]>,
    /// The functions that this process polls, and the frames it left to pollers.
    pub polling: Polling,
    doorbells: Box<[Doorbells]>,
    /// For each function that this process serves, the memory and interrupts of its client.
    guests: Box<[OnceLock<Arc<Guest>>]>,
    /// The last stopped program that this process reported to be waiting for.
    pub last_report: LastReport,
    /// Functions with work left because a call reached its work limit.
    pub left: [AtomicU64; 2],
    /// Parties that may have died.
    pub suspects: Suspects,
    /// Set once this process has woken the other programs to find out whether they can access its memory.
    introduced: AtomicBool,
    forks: u32,
    clock: Clock,
    /// The adapter that a link joins to this one directly.
    pub beside: Beside,
    /// The board of the adapter's conductor, if the adapter is in virtual time.
    pub(super) board: OnceLock<Board>,
}

impl Core {
    /// Creates the state of the adapter in `map` for party `me`.
    pub fn new(dir: PathBuf, map: Arc<Mapped>, adapter: Adapter, locks: &'static LockFile, me: Me) -> Self {
        sync::fork::watch();
        sys::allow_copies();
        let barriers = sys::accept_barriers();
        let board = OnceLock::new();
        if let Ok(Some(found)) = Board::find(&dir.join(::clock::FILE)) {
            let _ = board.set(found);
        }
        let zeros = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect();
        let forbidden = std::env::var_os("IRONVERBS_NO_DIRECT_COPY").is_some_and(|v| v == "1");
        let no_direct = forbidden || map.header().no_direct.load(Relaxed) != 0;
        Self {
            engines: Engines::new(adapter.config().faults, barriers),
            no_direct,
            dir,
            lost: map.lost().clone(),
            map,
            adapter,
            locks,
            me,
            maps: Maps::default(),
            paged: Maps::default(),
            lent: Lent::new(!no_direct),
            pinned: Pinned::new(),
            reach: (0..PARTIES).map(|_| AtomicU64::new(0)).collect(),
            interrupts: Interrupts::default(),
            opens: zeros(FUNCTIONS),
            polling: Polling::new(),
            doorbells: (0..FUNCTIONS).map(|_| Doorbells::default()).collect(),
            guests: (0..FUNCTIONS).map(|_| OnceLock::new()).collect(),
            last_report: LastReport::default(),
            left: Default::default(),
            suspects: Suspects::default(),
            introduced: AtomicBool::new(false),
            forks: sync::fork::generation(),
            clock: Clock::new(),
            beside: Beside::default(),
            board,
        }
    }

    /// True in the process that opened the node, false in a forked child.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.forks == sync::fork::generation()
    }

    /// True if shared memory or address space ran out when this process touched a page of the node. Other processes may not see its stores
    /// to that page, so all its calls fail from then on.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.is_set()
    }

    /// Marks the node as lost if the program has closed the node's descriptors: the locks went with them, so other processes take this one
    /// for dead.
    pub fn has_its_files(&self) {
        if !self.locks.is_open() {
            self.lost.set_for(CLOSED);
        }
    }

    /// The node's time in ps.
    #[inline]
    pub fn now(&self) -> u64 {
        if let Some(board) = self.board() {
            return board.now();
        }
        // The epoch in a damaged file may be in the future. The node's time is 0 until then.
        self.clock.now().saturating_sub(self.map.header().epoch.load(Relaxed)).wrapping_mul(1000)
    }

    /// The slot of this process among the parties.
    pub fn place(&self) -> &super::file::PartySlot {
        self.map.party(self.me.slot)
    }

    /// Process ID of party `slot` in this PID namespace; 0 if it is hidden by another one.
    pub fn pid(&self, slot: u16) -> u32 {
        self.locks.holder(slot).unwrap_or_else(|| self.map.party(slot).pid.load(Acquire))
    }

    /// How often this process has function `fid` open.
    pub fn opens(&self, fid: u8) -> &AtomicU32 {
        &self.opens[usize::from(fid)]
    }

    /// The functions that this process has open.
    pub fn open_functions(&self) -> impl Iterator<Item = u8> + '_ {
        self.opens.iter().enumerate().filter(|(_, n)| n.load(Relaxed) != 0).map(|(fid, _)| fid as u8)
    }

    /// The party that serves a function; 0 if none.
    #[inline]
    pub fn server(&self, fid: u8) -> u32 {
        self.map.functions().get(usize::from(fid)).map_or(0, |f| f.server.load(Relaxed))
    }

    /// The client of a function, if this process serves it.
    #[inline]
    pub fn guest(&self, fid: u8) -> Option<&Arc<Guest>> {
        if self.server(fid) != u32::from(self.me.slot) {
            return None;
        }
        Some(self.guest_place(fid))
    }

    /// The slot for the client of a function, whether it is served or not.
    pub fn guest_place(&self, fid: u8) -> &Arc<Guest> {
        self.guests[usize::from(fid)].get_or_init(Arc::default)
    }

    /// The doorbells of a function.
    #[inline]
    pub fn doorbells(&self, fid: u8) -> &Doorbells {
        &self.doorbells[usize::from(fid)]
    }

    /// True if party `slot` has function `fid` open.
    #[inline]
    pub fn has_open(&self, slot: u16, fid: u8) -> bool {
        self.map.functions().get(usize::from(fid)).is_some_and(|function| function.openers.has(slot))
    }

    /// The parties that have `fid` open.
    pub fn openers(&self, fid: u8) -> impl Iterator<Item = u16> + '_ {
        self.map.functions()[usize::from(fid)].openers.iter()
    }

    /// Adds this process to the parties that have `fid` open.
    pub fn enlist(&self, fid: u8, _lock: &NodeLock) {
        self.place().functions[usize::from(fid) / 64 % 2].fetch_or(1 << (fid % 64), AcqRel);
        self.map.functions()[usize::from(fid)].openers.insert(self.me.slot);
    }

    /// Returns a party that died with `fid` open. `None` if this process has it open too.
    #[inline]
    pub fn died(&self, fid: u8) -> Option<u16> {
        if self.opens(fid).load(Relaxed) != 0 {
            return None;
        }
        self.openers(fid).find(|slot| self.map.life(*slot).load(Acquire) & sys::DIED != 0)
    }

    /// True if this process copies directly to and from the memory of other programs.
    pub fn copies_directly(&self) -> bool {
        !self.no_direct
    }

    /// True if this process can do the work of the functions of party `slot`: all their memory is in the node's file, or this process can
    /// copy to and from the rest. The result holds as long as the lock of such a function is held, because keys to more memory are created
    /// under it.
    #[inline]
    pub fn reaches(&self, slot: u16) -> bool {
        slot == self.me.slot || self.copies_with(slot) || self.is_all_in_file(slot)
    }

    /// True if the device uses no memory of party `slot` by its virtual address.
    fn is_all_in_file(&self, slot: u16) -> bool {
        self.map.party(slot).by_address.load(Acquire) == 0
    }

    /// True if every receiver of a frame from `from` can read the memory that it refers to, even if some program cannot copy to and from
    /// all others.
    #[cold]
    pub fn is_read_by_all(&self, from: u8) -> bool {
        self.openers(from).all(|slot| self.is_all_in_file(slot))
    }

    /// True if this process can copy to and from the memory of party `slot`.
    #[inline]
    pub fn copies_with(&self, slot: u16) -> bool {
        self.copied(slot).is_some()
    }

    /// The process of party `slot`, if this process can copy to and from its memory. Asks the kernel once for each party and does not rely
    /// on the node's shared memory, which other processes could have changed.
    #[inline]
    pub fn copied(&self, slot: u16) -> Option<u32> {
        let generation = self.map.party(slot).generation.load(Acquire);
        let known = self.reach[usize::from(slot) % PARTIES].load(Relaxed);
        match known as u32 {
            pid if pid != 0 && known >> 32 == u64::from(generation) => (pid != OUT_OF_REACH).then_some(pid),
            _ => self.find_out(slot, generation),
        }
    }

    #[cold]
    fn find_out(&self, slot: u16, generation: u32) -> Option<u32> {
        // Nothing is recorded for a dead party, because the next one in its slot may be reachable.
        let found = if self.no_direct { Some(None) } else { party::probe(&self.map, self.locks, slot) };
        let pid = found?;
        self.note_reach(slot, generation, pid);
        pid
    }

    fn note_reach(&self, slot: u16, generation: u32, pid: Option<u32>) {
        if pid.is_none() {
            self.map.header().by_value.fetch_or(UNREACHED, AcqRel);
        }
        let known = u64::from(generation) << 32 | u64::from(pid.unwrap_or(OUT_OF_REACH));
        self.reach[usize::from(slot) % PARTIES].store(known, Relaxed);
    }

    /// Records that the kernel no longer permits copying to and from the memory of party `slot`.
    #[cold]
    pub fn reaches_no_longer(&self, slot: u16) {
        self.note_reach(slot, self.map.party(slot).generation.load(Acquire), None);
    }

    /// The other parties that have any function open.
    fn others(&self) -> impl Iterator<Item = u16> + '_ {
        let all = self.map.header().taken.iter().filter(|slot| *slot != 0 && *slot != self.me.slot);
        all.filter(|slot| self.map.party(*slot).functions.iter().any(|word| word.load(Acquire) != 0))
    }

    /// Finds out in advance which parties with open functions this process can reach.
    pub fn meet(&self) {
        self.others().for_each(|slot| _ = self.copies_with(slot));
    }

    /// Wakes the other parties once, so that they find out whether they can reach this process.
    pub fn introduce(&self) {
        if !self.introduced.swap(true, AcqRel) {
            self.others().for_each(|slot| self.wake(slot));
        }
    }

    /// Wakes the parked thread of `slot`.
    pub fn wake(&self, slot: u16) {
        self.map.party(slot).bell.ring(sys::futex_wake);
    }

    /// Marks the calling thread as the parked one.
    pub fn park(&self) {
        self.engines.park();
    }

    /// Allocates the shared memory that this program can touch in any use of function `fid`.
    pub fn make_room_for(&self, fid: u8) -> Result<(), NodeError> {
        let (region, me) = (self.adapter.region(), Party(self.me.slot));
        // Every function exchanges frames with the PF.
        if !region.reach_all(me) {
            return Err(NodeError::NoAddresses(self.dir.clone()));
        }
        match region.back_function(fid, me) && region.back_journal(0, me) {
            true => Ok(()),
            false => Err(room::no_room(&self.dir, room::FUNCTION)),
        }
    }

    /// Maps and allocates what this process touches when it runs functions that it does not have open.
    pub fn make_room_for_frames(&self) -> Result<(), NodeError> {
        let (region, me) = (self.adapter.region(), Party(self.me.slot));
        room::room(&self.dir, room::RESERVE)?;
        if !region.reach_all(me) {
            return Err(NodeError::NoAddresses(self.dir.clone()));
        }
        match region.back_journals(me) {
            true => Ok(()),
            false => Err(room::no_room(&self.dir, room::FUNCTION)),
        }
    }

    /// Allocates the shared memory for a full outlet.
    pub fn make_room_for_outlet(&self, which: Outlet) -> Result<(), NodeError> {
        let need = self.adapter.region().back_outlet(which);
        need.map_err(|len| room::no_room(&self.dir, len as u64))
    }

    /// True if moving `len` bytes of this process's memory to the node's file system leaves enough room for the queues of all programs.
    pub fn leaves_room(&self, len: u64) -> bool {
        dir::space(&self.dir).is_none_or(|space| room::leaves_enough(space, len))
    }
}
