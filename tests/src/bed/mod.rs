//! A test bed of the device model, in logical time and without a driver.
//!
//! A [`Bed`] is one adapter, the [`Memory`] of the machine around it, a [`Wire`] with a fault plan, and a clock that moves only when a test
//! advances it. All access goes through the interface of the chip: commands through the command queue, work through rings, doorbell records
//! and doorbells, results as raw CQEs and EQEs. A bed therefore tests the model by what a driver would see, and two beds with the same
//! inputs behave identically, bit for bit.

mod clock;
mod command;
mod datagram;
mod ethernet;
mod function;
mod memory;
mod objects;
mod peer;
mod poll;
mod post;
mod qp;
mod resize;
mod snapshot;
mod wire;

pub use clock::SCHEDULER;
pub use command::{CommandError, Cqe, MAILBOX_STRIDE, Reply};
pub use datagram::{Av, Umr};
pub use ethernet::{Nic, RxQueue, Send, USER_INDEX};
pub use function::{FunctionState, GID_IPV4, GID_LINK_LOCAL, gid_v4};
pub use hwspec::context::{
    flow::{COUNT, DROP, FORWARD, TO_TABLE, TO_TIR},
    rq_sq::{ERROR, READY, RESET},
};
pub use memory::{Interrupt, Memory};
pub use objects::{Access, Buffer, Cq, Eq, Mr, Srq};
pub use peer::{Peer, Pkt};
pub use poll::Wc;
pub use post::{Op, Sge, Wr};
pub use qp::{EXPECTS, Path, Qp, QpSpec, SENDS, opt};
pub use snapshot::Saved;
pub use wire::{Captured, Chaos, Fault, Filter, SharedWire, Wire, parse, reseal, rewrite};

use clock::Scheduler;
use devmodel::{
    Adapter, Announcement, Config, Conformance, LinkLayer,
    engine::Runner,
    host::{Host, Parties, Party},
    identity,
    region::{Func, Geometry, Region, Sync, WireRing},
    state::Counters,
};
use std::{
    collections::BTreeMap,
    sync::{MutexGuard, atomic::Ordering},
};

/// Picoseconds in a nanosecond.
pub const NS: u64 = 1_000;
/// Picoseconds in a microsecond.
pub const US: u64 = 1_000 * NS;
/// Picoseconds in a millisecond.
pub const MS: u64 = 1_000 * US;
/// Picoseconds in a second.
pub const S: u64 = 1_000 * MS;

/// Number of rounds after which a bed must be idle.
const ROUNDS: usize = 200_000;

/// A test bed as described in the [module](self).
pub struct Bed {
    /// The chip.
    pub adapter: Adapter,
    /// The runner that drives the chip.
    pub runner: Runner,
    /// The machine around the chip.
    pub memory: Memory,
    scheduler: Scheduler,
    wire: SharedWire,
    now: u64,
    functions: BTreeMap<u8, FunctionState>,
    queues: objects::Queues,
}

impl Bed {
    /// Creates a small adapter that was just powered on, with only the PF. Time starts at one second, so that no time is 0.
    pub fn new(config: Config) -> Self {
        let mut memory = Memory::default();
        let config = Scheduler::adjusted(config);
        let adapter = Adapter::power_on(Region::private(Geometry::SMALL), config, &mut memory);
        let wire = SharedWire::default();
        let mut runner = Runner::new();
        runner.set_link(Some(Box::new(wire.clone())));
        let bed = Self {
            adapter,
            scheduler: Scheduler::chosen(&config, &mut runner, &wire, S),
            runner,
            memory,
            wire,
            now: S,
            functions: BTreeMap::new(),
            queues: objects::Queues::default(),
        };
        bed.wire().now = bed.now;
        bed
    }

    /// Creates a bed with the default behaviour.
    pub fn cx5() -> Self {
        Self::new(Config::default())
    }

    /// Creates a bed with the default behaviour on InfiniBand.
    pub fn infiniband() -> Self {
        Self::new(Config { link_layer: LinkLayer::Infiniband, ..Config::default() })
    }

    /// The bed with function `fid` brought up.
    pub fn with_function(mut self, fid: u8) -> Self {
        self.function(fid);
        self
    }

    /// Creates a bed that follows the letter of the specification.
    pub fn ibta() -> Self {
        Self::new(Config { profile: Conformance::Ibta, ..Config::default() })
    }

    /// Keeps frames within the region, with payload by reference, as on a node: nothing is captured and no fault plan applies.
    pub fn unwatched(&mut self) {
        self.runner.set_link(None);
        if let Scheduler::Costed(timed) = &mut self.scheduler {
            timed.set_link(None);
        }
    }

    /// Returns the wire.
    pub fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.get()
    }

    /// Returns the logical time in picoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Runs the chip until no work is left at this time.
    pub fn run(&mut self) {
        for _ in 0..ROUNDS {
            if !self.round() {
                return;
            }
        }
        panic!("the adapter did not come to rest within {ROUNDS} rounds");
    }

    /// Runs the chip for at most `rounds` rounds, for work that has to wait for another party.
    pub fn run_rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            if !self.round() {
                return;
            }
        }
    }

    /// Stops party `party` while it holds function `fid`.
    pub fn stop_holding(&mut self, fid: u8, party: Party) {
        self.as_stopped(party, |adapter, memory| {
            std::mem::forget(Func::lock(adapter.region(), fid, memory));
        });
    }

    /// Stops party `party` while it puts a frame into the receive ring of `fid`.
    pub fn stop_filling(&mut self, fid: u8, party: Party) {
        self.as_stopped(party, |adapter, memory| {
            std::mem::forget(WireRing::of(adapter.region(), fid).fill(memory));
        });
    }

    fn as_stopped(&mut self, party: Party, stop: impl FnOnce(&Adapter, &mut Memory)) {
        let ours = Memory::party(&self.memory);
        self.memory.set_party(party);
        stop(&self.adapter, &mut self.memory);
        self.memory.set_party(ours);
        self.memory.stopped.insert(party.0);
    }

    /// Kills the stopped party `party` and releases what it held.
    pub fn kill(&mut self, party: Party) {
        self.memory.stopped.remove(&party.0);
        self.memory.dead.insert(party.0);
        let freed = self.adapter.region().free_locks_of(&mut self.memory, party);
        assert!(freed.is_some(), "another stopped party holds a lock");
    }

    /// Returns the next time at which the chip or the wire has work, in picoseconds.
    pub fn next_timer(&mut self) -> Option<u64> {
        self.settle();
        match &mut self.scheduler {
            Scheduler::Costed(timed) => {
                timed.next(&self.adapter).into_iter().chain(self.wire().next_arrival()).min()
            }
            _ => next_timer(&self.adapter, &mut self.memory, &self.wire),
        }
    }

    /// Runs, advances to the next timer or delayed frame, and runs again. Returns false if there was none.
    pub fn advance_to_timer(&mut self) -> bool {
        self.run();
        let Some(at) = self.next_timer() else { return false };
        self.set_now(at.max(self.now));
        self.run();
        true
    }

    /// Advances time by `duration` (ps), handling every timer at its time.
    pub fn advance(&mut self, duration: u64) {
        let end = self.now + duration;
        self.run();
        while let Some(at) = self.next_timer().filter(|at| *at <= end) {
            self.set_now(at.max(self.now));
            self.run();
        }
        self.set_now(end);
        self.run();
    }

    /// Advances time from timer to timer until `done` returns true. Returns false if that does not happen within `limit` (ps).
    pub fn advance_until(&mut self, limit: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        self.run();
        while !done(self) {
            let Some(at) = self.next_timer().filter(|at| *at <= end) else {
                self.set_now(end);
                self.run();
                return done(self);
            };
            self.set_now(at.max(self.now));
            self.run();
        }
        true
    }

    fn set_now(&mut self, now: u64) {
        self.now = now;
        if let Scheduler::Costed(timed) = &mut self.scheduler {
            timed.begin(now);
        }
        self.wire().now = now;
    }

    /// Delivers a complete frame from outside.
    pub fn inject(&mut self, frame: &[u8]) {
        self.receive(frame);
        self.run();
    }

    /// LID of the switch.
    pub fn switch_lid(&self) -> u16 {
        identity::switch_lid(self.adapter.config().node_id)
    }

    /// Tells the administrator of the subnet what the other adapters announce.
    pub fn learn(&mut self, others: &[Announcement]) {
        assert!(self.runner.learn(&self.adapter, &mut self.memory, self.now, others));
        self.written(0);
        self.run();
    }

    /// Reads a counter of a function.
    pub fn counter(&mut self, fid: u8, counter: Counters) -> u64 {
        Func::lock(self.adapter.region(), fid, &mut self.memory).function().counters[counter as usize]
    }

    /// Returns the frames that entered the wire since the last call.
    pub fn take_frames(&mut self) -> Vec<Captured> {
        std::mem::take(&mut self.wire().captured)
    }
}

/// Runs every function that has work and is not held by another party, and delivers the frames of the wire that are due. Returns false
/// if nothing moved.
fn round(adapter: &Adapter, runner: &mut Runner, host: &mut dyn Host, now: u64, wire: &SharedWire) -> bool {
    let mut any = false;
    loop {
        let Some(frame) = wire.get().take_late() else { break };
        runner.receive(adapter, host, now, &frame);
        any = true;
    }
    let region = adapter.region();
    for fid in 0..region.functions() {
        let waits = || {
            WireRing::of(region, fid).waits() || region.sync(fid, Sync::Ready).load(Ordering::Relaxed) != 0
        };
        let is_free = region.function_lock(fid).holder().is_none();
        if is_free && (waits() || timer_of(adapter, host, fid).is_some_and(|at| at <= now)) {
            runner.run(adapter, host, now, fid);
            any = true;
        }
    }
    let kept = if any { None } else { wire.get().take_kept() };
    if let Some(frame) = kept {
        runner.receive(adapter, host, now, &frame);
        any = true;
    }
    any
}

/// Returns the next time at which the chip or the wire has work, in picoseconds.
fn next_timer(adapter: &Adapter, host: &mut dyn Host, wire: &SharedWire) -> Option<u64> {
    let timers = (0..adapter.region().functions()).filter_map(|fid| timer_of(adapter, host, fid));
    timers.chain(wire.get().next_arrival()).min()
}

fn timer_of(adapter: &Adapter, host: &mut dyn Host, fid: u8) -> Option<u64> {
    Func::try_lock(adapter.region(), fid, host)?.next_timer()
}
