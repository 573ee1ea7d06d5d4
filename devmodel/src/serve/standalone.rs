//! An adapter in private memory that serves its functions, for tests and tools that need no node.
//!
//! One thread at a time drives it. Time is wall-clock time; a caller that waits for timers calls [`Standalone::run`].

use super::{Function, Guest, transfer};
use crate::{
    Adapter, Config,
    engine::Runner,
    host::{Abort, Alone, Bus, Host, Iova, Move, Rid, Source},
    pcie::MsixMessage,
    region::{FunctionSet, Geometry, Patience, Region},
};
use hwspec::pcie::SRIOV_CAP;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Message address that the interrupts would use on a bus; vectors are connected by number.
const MESSAGE_ADDRESS: u64 = 0xfee0_0000;

/// An adapter in private memory.
pub struct Standalone {
    adapter: Adapter,
    guests: Box<[Guest]>,
    runner: Mutex<Runner>,
    epoch: Instant,
}

/// A function of a [`Standalone`].
struct Slot {
    standalone: Arc<Standalone>,
    fid: u8,
}

struct StandaloneHost<'a>(&'a [Guest]);

impl Standalone {
    /// Creates an adapter with its PF and all VFs of its geometry enabled.
    pub fn new(geometry: Geometry, config: Config) -> Arc<Self> {
        let guests: Box<[Guest]> = (0..geometry.functions).map(|_| Guest::default()).collect();
        let mut host = StandaloneHost(&guests);
        let adapter = Adapter::power_on(Region::private(geometry), config, &mut host);
        let mut runner = Runner::new();
        for (offset, value) in [(0x10, u32::from(geometry.functions) - 1), (0x08, 0b1001)] {
            adapter.config_write(&mut runner, &mut host, 0, 0, SRIOV_CAP + offset, 2, value);
        }
        Arc::new(Self { adapter, guests, runner: Mutex::new(runner), epoch: Instant::now() })
    }

    /// Function `fid`, to be served.
    pub fn function(self: &Arc<Self>, fid: u8) -> impl Function + 'static {
        Slot { standalone: self.clone(), fid }
    }

    /// The adapter.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Runs pending work and due timers.
    pub fn run(&self) {
        self.drive(|adapter, runner, host, now| runner.run_waiting(adapter, host, now, FunctionSet::MAX));
    }

    fn drive<R>(&self, f: impl FnOnce(&Adapter, &mut Runner, &mut dyn Host, u64) -> R) -> R {
        let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.epoch.elapsed().as_nanos() as u64 * 1000;
        f(&self.adapter, &mut runner, &mut StandaloneHost(&self.guests), now)
    }
}

impl Function for Slot {
    fn guest(&self) -> &Guest {
        &self.standalone.guests[usize::from(self.fid)]
    }
    fn config_read(&self, offset: usize, width: usize) -> u32 {
        self.standalone.drive(|adapter, _, host, _| adapter.config_read(host, self.fid, offset, width))
    }
    fn config_write(&self, offset: usize, width: usize, value: u32) {
        self.standalone.drive(|adapter, runner, host, now| {
            adapter.config_write(runner, host, now, self.fid, offset, width, value);
        });
    }
    fn bar_read32(&self, offset: u64) -> u32 {
        self.standalone.drive(|adapter, _, host, now| adapter.bar_read32(host, now, self.fid, offset))
    }
    fn bar_write32(&self, offset: u64, value: u32) {
        self.standalone.drive(|adapter, runner, host, now| {
            adapter.bar_write32(runner, host, now, self.fid, offset, value);
        });
    }
    fn bar_write64(&self, offset: u64, value: u64) {
        self.standalone.drive(|adapter, runner, host, now| {
            adapter.bar_write64(runner, host, now, self.fid, offset, value);
        });
    }
    fn vector(&self, vector: u16, sends: bool) {
        let message = MsixMessage { address: MESSAGE_ADDRESS, data: vector.into() };
        self.standalone.drive(|adapter, _, host, _| {
            adapter.msix_program(host, self.fid, vector, sends.then_some(message));
        });
    }
    fn reset(&self) {
        self.standalone.drive(|adapter, _, host, _| adapter.reset_alone(host, self.fid, Patience::Endless));
    }
    fn ask_pages(&self, pages: i32) -> bool {
        self.standalone.drive(|adapter, _, host, _| adapter.ask_pages(host, self.fid, pages))
    }
}

impl StandaloneHost<'_> {
    fn guest(&self, rid: Rid) -> Option<&Guest> {
        self.0.get(usize::from(rid.0))
    }
}

impl Bus for StandaloneHost<'_> {
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        self.guest(rid).ok_or(Abort::Source)?.memory.read(at, buf)
    }
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        self.guest(rid).ok_or(Abort::Destination)?.memory.write(at, data)
    }
    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        for one in moves {
            let to = &self.guest(one.dst_rid).ok_or(Abort::Destination)?.memory;
            match one.src {
                Source::Staged(at) => {
                    let bytes = staged.get(at as usize..).and_then(|b| b.get(..one.len as usize));
                    to.write(one.dst, bytes.ok_or(Abort::Source)?)?;
                }
                Source::Bus(rid, at) => {
                    let from = &self.guest(rid).ok_or(Abort::Source)?.memory;
                    transfer((from, at), (to, one.dst), one.len.into(), one.dst_rid.0 < rid.0)?;
                }
            }
        }
        Ok(())
    }
    fn msix(&mut self, rid: Rid, vector: u16, _address: u64, data: u32) {
        if let Some(guest) = self.guest(rid) {
            guest.irqs.raise(vector, data);
        }
    }
}

impl Alone for StandaloneHost<'_> {}
