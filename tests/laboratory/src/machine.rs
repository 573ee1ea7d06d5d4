//! A node in ordinary memory: one adapter, the programs that use it, and their shared state. It serves the tasks as the node's file and the
//! kernel serve programs (`ffi/node`), with the same order of steps.
#![allow(unsafe_code)] // blocks of memory that the chip reaches by address; the machine outlives all users of them

use crate::schedule::{Point, visit};
use devmodel::{
    Adapter, Config,
    engine::Runner,
    host::{Abort, Party, Rid},
    region::{FunctionSet, Geometry, Patience, Region},
};
use hwspec::pcie::SRIOV_CAP;
use ironverbs::sim::machine::Mapped;
use std::{
    alloc::Layout,
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};
use tests::end::Card;

use crate::host::LabHost;

/// Number of VFs beside the PF.
pub const VFS: u8 = 5;
/// Number of places for programs: fewer than the programs of a run, so that places of dead programs must be reused.
pub const PLACES: usize = 13;
/// Bytes of the area shared by the openers of a function.
pub const SHARED: usize = 64 << 10;
/// Offset of the bus addresses of programs' own memory, which separates them from those of ring memory (the process's own addresses).
const OWN: u64 = 1 << 48;
/// Maximum number of times that a call of `drive` resumes work left over when a runner's bound was reached.
const AGAIN: usize = 8;
/// The party that sets the machine up and checks it at the end.
pub const WATCHER: Party = Party(PLACES as u16);

/// A slot for a program.
#[derive(Default)]
pub struct Place {
    pub taken: Cell<bool>,
    pub dead: Cell<bool>,
    pub stopped: Cell<bool>,
    /// Its second thread has been asked to end.
    pub ends: Cell<bool>,
    /// Its second thread exists.
    pub parked: Cell<bool>,
    /// Its second thread has been woken.
    pub woken: Cell<bool>,
    pub generation: Cell<u32>,
    /// Functions it has open, as a bit set.
    pub open: Cell<FunctionSet>,
    /// Functions that it cleans up after dead programs; meanwhile it shares state with their openers.
    pub cleans: Cell<FunctionSet>,
    /// Functions with work left over when a runner's bound was reached.
    pub left: Cell<FunctionSet>,
    /// The runners of its two threads.
    pub runners: [Cell<Option<Box<Runner>>>; 2],
    /// Eventfds given to its drivers, each with a duplicate of our own that identifies it: once closed, its number may be reused.
    fds: RefCell<Vec<(RawFd, OwnedFd)>>,
}

/// A program's report to its partner.
#[derive(Clone)]
pub struct Report {
    pub card: Card,
    /// The program is connected and has posted its receives.
    pub ready: bool,
    /// Total number of messages sent; set when the program sends no more.
    pub sent: Option<usize>,
}

/// Returns the kernel's text about descriptor `fd` of this process.
fn fdinfo(fd: RawFd) -> String {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default()
}

/// Returns the kernel's id of an eventfd, which is unique among open ones, or 0 if `fd` is not an eventfd.
fn eventfd_id(fd: RawFd) -> u64 {
    let info = fdinfo(fd);
    let id = info.lines().find_map(|line| line.strip_prefix("eventfd-id:")?.trim().parse().ok());
    id.unwrap_or(0)
}

/// Returns those of `given` that are still open, and the epoll descriptors that wait for them.
fn left_open(given: &[(RawFd, OwnedFd)]) -> Vec<RawFd> {
    let mut open: Vec<RawFd> = given
        .iter()
        .filter(|(fd, ours)| eventfd_id(*fd) == eventfd_id(ours.as_raw_fd()))
        .map(|(fd, _)| *fd)
        .collect();
    let waits_for =
        |line: &str| -> Option<RawFd> { line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok() };
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let all: Vec<RawFd> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let waiting =
        all.into_iter().filter(|fd| fdinfo(*fd).lines().filter_map(waits_for).any(|fd| open.contains(&fd)));
    let waiting: Vec<RawFd> = waiting.collect();
    open.extend(waiting);
    open
}

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Function(u8),
    Party(u16),
}

#[derive(Default)]
pub struct Memory {
    pub mapped: Mapped,
    /// Blocks of ring memory by address.
    blocks: BTreeMap<u64, (Owner, u8, Layout)>,
    /// Memory registered by programs: function, address, length in bytes, program.
    registered: Vec<(u8, u64, usize, u16)>,
    /// The same for dead programs.
    gone: Vec<(u8, u64, usize)>,
}

/// A deliberate fault of the machine, to check that the laboratory detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Runners are not told that a lock holder is stopped, and wait as long as it is alive.
    PatienceIsEndless,
    /// Dead programs are not cleaned up.
    DeadStay,
}

/// The node that the [module](self) describes.
pub struct Machine {
    pub fault: Option<Fault>,
    pub adapter: Adapter,
    pub memory: RefCell<Memory>,
    pub places: Vec<Place>,
    /// Logical time in ps.
    pub now: Cell<u64>,
    /// The holder of the node's lock; 0 if free.
    pub lock: Cell<u16>,
    shared: [Cell<u64>; VFS as usize + 1],
    /// Reports that programs exchange outside the adapter.
    pub reports: RefCell<BTreeMap<(usize, u32, usize), Report>>,
}

thread_local! {
    static MACHINE: Cell<Option<&'static Machine>> = const { Cell::new(None) };
}

/// Returns the machine of this run.
pub fn machine() -> &'static Machine {
    MACHINE.get().expect("a machine is there while tasks are")
}

/// The machine of a run; dropping it frees the machine.
pub struct Installed(*mut Machine);

impl Installed {
    pub fn new(fault: Option<Fault>) -> Self {
        let geometry = Geometry { functions: VFS + 1, log_parties: 4, ..Geometry::SMALL };
        let mut host = LabHost { party: WATCHER, steady: false };
        let machine = Machine {
            fault,
            adapter: Adapter::power_on(Region::private(geometry), Config::default(), &mut host),
            memory: RefCell::default(),
            places: (0..=PLACES).map(|_| Place::default()).collect(),
            now: Cell::new(1_000_000_000_000),
            lock: Cell::new(0),
            shared: Default::default(),
            reports: RefCell::default(),
        };
        let at = Box::into_raw(Box::new(machine));
        // SAFETY: it was just made, and is freed when this is dropped, after all tasks.
        MACHINE.set(Some(unsafe { &*at }));
        enable_vfs();
        Self(at)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        MACHINE.set(None);
        // SAFETY: made by `Box::into_raw`; all tasks have ended or were killed, and no other code uses it.
        let machine = unsafe { Box::from_raw(self.0) };
        let mut memory = machine.memory.borrow_mut();
        for (at, (_, _, layout)) in std::mem::take(&mut memory.blocks) {
            // SAFETY: allocated in `block` with this layout, and no user of it is left.
            unsafe { std::alloc::dealloc(at as *mut u8, layout) };
        }
    }
}

fn enable_vfs() {
    let machine = machine();
    machine.places[usize::from(WATCHER.0)].taken.set(true);
    machine.drive(WATCHER, 0, |runner, host| {
        let adapter = &machine.adapter;
        for (offset, value) in [(SRIOV_CAP + 0x10, u32::from(VFS)), (SRIOV_CAP + 0x08, 0x9)] {
            adapter.config_write(runner, host, machine.now.get(), 0, offset, 4, value);
        }
    });
}

/// Proof that the node's lock is held.
pub struct NodeLock(());

impl Drop for NodeLock {
    fn drop(&mut self) {
        visit(Point::Node);
        machine().lock.set(0);
        visit(Point::Node);
    }
}

impl Machine {
    pub fn place(&self, party: Party) -> &Place {
        &self.places[usize::from(party.0)]
    }

    /// Takes the node's lock; the kernel releases it when its holder dies.
    pub fn lock(&self, party: Party) -> NodeLock {
        visit(Point::Node);
        while self.lock.get() != 0 {
            visit(Point::Nap);
        }
        self.lock.set(party.0);
        visit(Point::Node);
        NodeLock(())
    }

    pub fn openers(&self, fid: u8) -> impl Iterator<Item = u16> + '_ {
        (1..=PLACES as u16).filter(move |slot| self.places[usize::from(*slot)].open.get() & 1 << fid != 0)
    }

    /// Takes a place for a new program. The program first cleans up after the dead, for which it needs a place.
    pub fn claim(&self) -> Party {
        let free = (1..PLACES as u16).find(|slot| !self.places[usize::from(*slot)].taken.get());
        let party =
            Party(free.expect("the table of parties is full: the places of the dead do not come free"));
        let place = self.place(party);
        place.generation.set(place.generation.get() + 1);
        place.taken.set(true);
        place.ends.set(false);
        place.woken.set(false);
        place.parked.set(true);
        party
    }

    pub fn wake(&self, slot: u16) {
        self.places[usize::from(slot)].woken.set(true);
    }

    /// Drives the model as thread `thread` of `party`.
    pub fn drive<R>(&self, party: Party, thread: usize, f: impl FnOnce(&mut Runner, &mut LabHost) -> R) -> R {
        let place = self.place(party);
        // A program that is killed takes the runner with it.
        let mut runner = place.runners[thread].take().unwrap_or_default();
        let mut host = LabHost { party, steady: thread == 0 };
        let result = f(&mut runner, &mut host);
        let now = self.now.get();
        let mut left = runner.take_due() | runner.take_paused();
        for _ in 0..AGAIN {
            if left == 0 {
                break;
            }
            for fid in functions(left) {
                runner.run(&self.adapter, &mut host, now, fid);
            }
            left = runner.take_due() | runner.take_paused();
        }
        if left != 0 {
            place.left.set(place.left.get() | left);
            self.wake(party.0);
        }
        place.runners[thread].set(Some(runner));
        result
    }

    /// Like [`drive`](Self::drive), for code that locks `fid` without running it.
    pub fn touch<R>(
        &self,
        party: Party,
        thread: usize,
        fid: u8,
        f: impl FnOnce(&mut Runner, &mut LabHost) -> R,
    ) -> R {
        self.drive(party, thread, |runner, host| {
            let result = f(runner, host);
            runner.look_again(&self.adapter, host, self.now.get(), fid);
            result
        })
    }

    /// Runs `fid` if it has work.
    pub fn run(&self, party: Party, thread: usize, fid: u8) {
        self.drive(party, thread, |runner, host| runner.run(&self.adapter, host, self.now.get(), fid));
    }

    /// Adds `party` to the openers of `fid`.
    pub fn open(&self, party: Party, fid: u8) {
        let lock = self.lock(party);
        self.reap_locked(party, 0, &lock);
        let place = self.place(party);
        place.open.set(place.open.get() | 1 << fid);
    }

    /// Removes it again. Work held up by a stopped program is done when that program has ended.
    pub fn close(&self, party: Party, fid: u8) {
        let lock = self.lock(party);
        let _ = self.strike(party, 0, party.0, fid, &lock);
    }

    /// Ends a program; its place becomes free with its last step. Functions that it could not close are left for cleanup.
    pub fn leave(&self, party: Party) {
        let lock = self.lock(party);
        let place = self.place(party);
        // The driver closed them.
        place.fds.borrow_mut().clear();
        if place.open.get() == 0 {
            self.free_all(Owner::Party(party.0));
        } else {
            place.dead.set(true);
        }
        drop(lock);
    }

    /// Releases the memory and the node's lock of the killed program of `party`.
    pub fn bury_process(&self, party: Party) {
        let place = self.place(party);
        place.dead.set(true);
        place.stopped.set(false);
        if self.lock.get() == party.0 {
            self.lock.set(0);
        }
        let mut memory = self.memory.borrow_mut();
        let Memory { mapped, registered, gone, .. } = &mut *memory;
        registered.retain(|(fid, at, len, owner)| {
            if *owner == party.0 {
                mapped.unmap(*fid, *at, *len);
                gone.push((*fid, *at, *len));
            }
            *owner != party.0
        });
        for fd in left_open(&place.fds.take()) {
            // SAFETY: it was given to a program that never runs again, and was not dropped with it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }

    /// Cleans up after all dead programs.
    pub fn reap(&self, party: Party, thread: usize) {
        let lock = self.lock(party);
        self.reap_locked(party, thread, &lock);
    }

    fn reap_locked(&self, party: Party, thread: usize, lock: &NodeLock) {
        let dead = |slot: &u16| {
            self.places[usize::from(*slot)].taken.get() && self.places[usize::from(*slot)].dead.get()
        };
        if self.fault == Some(Fault::DeadStay) {
            return;
        }
        let slots: Vec<u16> = (1..PLACES as u16).filter(dead).collect();
        for slot in slots {
            let me = self.place(party);
            me.cleans.set(self.places[usize::from(slot)].open.get());
            let _ = self.bury(party, thread, slot, lock);
            me.cleans.set(0);
        }
    }

    /// Mirrors `Core::bury`: cleans up after the program in `slot`. `None` means a stopped program holds it up.
    fn bury(&self, party: Party, thread: usize, slot: u16, lock: &NodeLock) -> Option<()> {
        let (adapter, now) = (&self.adapter, self.now.get());
        let dead = &self.places[usize::from(slot)];
        let opened = dead.open.get();
        self.drive(party, thread, |runner, host| {
            let repaired = adapter.region().free_locks_of(host, Party(slot));
            let locked = repaired.and_then(|repaired| {
                let (_, reaped) = adapter.reap(host, Party(slot), opened)?;
                Some(repaired | reaped)
            });
            // From here on, pending work of these functions belongs to their users.
            let me = self.place(party);
            let cleans = me.cleans.replace(0);
            runner.run_waiting(adapter, host, now, locked.unwrap_or(FunctionSet::MAX));
            me.cleans.set(cleans);
            locked
        })?;
        for fid in functions(opened) {
            self.strike(party, thread, slot, fid, lock)?;
        }
        self.free_all(Owner::Party(slot));
        visit(Point::Node);
        dead.dead.set(false);
        dead.taken.set(false);
        Some(())
    }

    /// Mirrors `Core::strike`: removes `slot` from the openers of `fid`, and resets `fid` if it was the last.
    fn strike(&self, party: Party, thread: usize, slot: u16, fid: u8, _lock: &NodeLock) -> Option<()> {
        if !self.openers(fid).any(|other| other != slot) {
            self.reset(party, thread, fid)?;
            self.free_all(Owner::Function(fid));
            self.shared[usize::from(fid)].set(0);
        }
        visit(Point::Node);
        let open = &self.places[usize::from(slot)].open;
        open.set(open.get() & !(1 << fid));
        Some(())
    }

    /// Function level reset. `None` means a stopped program holds it up. The caller holds the node's lock.
    pub fn reset(&self, party: Party, thread: usize, fid: u8) -> Option<()> {
        self.drive(party, thread, |runner, host| {
            let locked = self.adapter.reset_with(host, fid, Patience::UntilStopped);
            runner.run_waiting(&self.adapter, host, self.now.get(), locked.unwrap_or(FunctionSet::MAX));
            locked.map(drop)
        })
    }

    /// Allocates zeroed memory for `fid` and returns its address.
    pub fn block(&self, owner: Owner, fid: u8, len: usize) -> u64 {
        // The driver chooses the page size of a queue by its address, so the alignment must be the same in every run.
        let layout = Layout::from_size_align(len.next_multiple_of(4096), len.next_power_of_two().max(4096));
        let layout = layout.expect("a size");
        // SAFETY: the size is not zero.
        let at = unsafe { std::alloc::alloc_zeroed(layout) } as u64;
        assert_ne!(at, 0, "memory");
        let mut memory = self.memory.borrow_mut();
        memory.blocks.insert(at, (owner, fid, layout));
        // SAFETY: the block was just allocated, and is unmapped before it is freed.
        unsafe { memory.mapped.map(fid, at, at, layout.size()) };
        at
    }

    pub fn free(&self, at: u64) {
        let mut memory = self.memory.borrow_mut();
        if let Some((_, fid, layout)) = memory.blocks.remove(&at) {
            memory.mapped.unmap(fid, at, layout.size());
            // SAFETY: allocated in `block` with this layout; its owner frees it, or is gone.
            unsafe { std::alloc::dealloc(at as *mut u8, layout) };
        }
    }

    fn free_all(&self, owner: Owner) {
        let memory = self.memory.borrow();
        let whose = memory.blocks.iter().filter(|(_, (o, ..))| *o == owner);
        let blocks: Vec<u64> = whose.map(|(at, _)| *at).collect();
        drop(memory);
        blocks.into_iter().for_each(|at| self.free(at));
    }

    /// Returns the blocks of ring memory that are left.
    pub fn blocks(&self) -> Vec<(Owner, u8)> {
        self.memory.borrow().blocks.values().map(|(owner, fid, _)| (*owner, *fid)).collect()
    }

    /// Returns the area shared by the openers of `fid`. The caller holds the node's lock.
    pub fn shared(&self, fid: u8, _lock: &NodeLock) -> u64 {
        let known = &self.shared[usize::from(fid)];
        if known.get() == 0 {
            known.set(self.block(Owner::Function(fid), fid, SHARED));
        }
        known.get()
    }

    /// Maps a program's own memory and returns its bus address.
    pub fn register(&self, party: Party, fid: u8, memory: u64, len: usize) -> u64 {
        // The extra page offset makes a region use 4 KiB pages, wherever its memory is.
        let at = memory + OWN + 4096;
        let mut memories = self.memory.borrow_mut();
        // SAFETY: as `Transport::dma_map` demands of the driver, the memory stays until `unregister`, or until its program is taken for dead.
        unsafe { memories.mapped.map(fid, at, memory, len) };
        memories.registered.push((fid, at, len, party.0));
        at
    }

    pub fn unregister(&self, party: Party, fid: u8, at: u64, len: usize) {
        let mut memory = self.memory.borrow_mut();
        let found = memory.registered.iter().position(|entry| *entry == (fid, at, len, party.0));
        let found = found.expect("a registered range is unregistered");
        memory.registered.swap_remove(found);
        memory.mapped.unmap(fid, at, len);
    }

    /// Returns the error of a copy that found no memory at `at`.
    pub fn abort(&self, rid: Rid, at: u64, or: Abort) -> Abort {
        let gone = &self.memory.borrow().gone;
        let within = |(fid, begin, len): &(u8, u64, usize)| {
            *fid == rid.0 && (*begin..*begin + *len as u64).contains(&at)
        };
        if gone.iter().any(within) { Abort::Gone } else { or }
    }

    pub fn note_fd(&self, party: Party, fd: RawFd) {
        // SAFETY: the caller has it open.
        let ours = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().expect("a descriptor");
        self.place(party).fds.borrow_mut().push((fd, ours));
    }

    /// Returns the dead programs that have not been cleaned up.
    pub fn dead(&self) -> BTreeSet<u16> {
        (1..PLACES as u16).filter(|slot| self.places[usize::from(*slot)].dead.get()).collect()
    }
}

/// The functions in a set.
pub fn functions(set: FunctionSet) -> impl Iterator<Item = u8> {
    (0..=VFS).filter(move |fid| set & 1 << fid != 0)
}
