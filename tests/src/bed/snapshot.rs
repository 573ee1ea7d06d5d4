//! A snapshot of a bed: the chip's region, the memory around it, the wire and the clock.

use super::{Bed, FunctionState, Memory, Scheduler, SharedWire, Wire, objects::Queues};
use devmodel::{
    Adapter, Config,
    engine::Runner,
    region::{Region, Snapshot},
};
use std::collections::BTreeMap;

/// The complete state of a bed.
#[derive(Clone)]
pub struct Saved {
    config: Config,
    region: Snapshot,
    memory: Memory,
    wire: Wire,
    now: u64,
    functions: BTreeMap<u8, FunctionState>,
    queues: Queues,
}

impl Saved {
    /// Returns the chip's part.
    pub fn region(&self) -> &Snapshot {
        &self.region
    }
}

impl Bed {
    /// Takes a snapshot.
    pub fn save(&self) -> Saved {
        Saved {
            config: *self.adapter.config(),
            region: self.adapter.region().snapshot(),
            memory: self.memory.clone(),
            wire: self.wire().clone(),
            now: self.now,
            functions: self.functions.clone(),
            queues: self.queues.clone(),
        }
    }

    /// Creates a bed that continues from `saved`.
    pub fn restore(saved: &Saved) -> Self {
        let wire = SharedWire::new(saved.wire.clone());
        let mut runner = Runner::new();
        runner.set_link(Some(Box::new(wire.clone())));
        Self {
            scheduler: Scheduler::chosen(&saved.config, &mut runner, &wire, saved.now),
            adapter: Adapter::attach(Region::restore(&saved.region), saved.config),
            runner,
            memory: saved.memory.clone(),
            wire,
            now: saved.now,
            functions: saved.functions.clone(),
            queues: saved.queues.clone(),
        }
    }
}
