//! The state of a node, as seen from outside.

use super::{
    FunctionAddress, NodeError,
    core::Core,
    file::{Mapped, PAGE},
    locks::LockFile,
    party,
};
use crate::{devices::MAX_VFS, naming::Naming};
use devmodel::{
    Config, LinkLayer,
    region::{Outlet, OutletRing, Region},
    state::{COUNTERS, CqRow, EqRow, MkeyRow, PdRow, QpRow, SrqRow, UarRow, UctxRow},
    strict::Strict,
    wire::Faults,
};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::Ordering::*,
};

/// A program on the node.
#[derive(Clone, Debug)]
pub struct PartyStatus {
    /// Its number.
    pub party: u16,
    /// Process ID in this PID namespace, or 0 if it is hidden by another one. For a dead program it is the PID in its own namespace.
    pub pid: u32,
    /// True if it is alive. Resources of a dead program are freed when the next program opens the node or notices the death.
    pub lives: bool,
    /// Functions it has open.
    pub functions: Vec<u8>,
    /// How often its parked thread was woken by another thread.
    pub wakes: u64,
    /// How often its parked thread woke because of a timer.
    pub ticks: u64,
}

/// State of a function.
#[derive(Clone, Debug)]
pub struct FunctionStatus {
    /// Number; 0 is the PF.
    pub fid: u8,
    /// IP address, if one was set.
    pub address: Option<FunctionAddress>,
    /// True if a driver has brought it up.
    pub up: bool,
    /// Parties that have it open.
    pub parties: Vec<u16>,
    /// True if its party serves it to a client outside the node.
    pub served: bool,
    /// Number of objects of each kind, without kinds that have none.
    pub objects: Vec<(&'static str, u32)>,
    /// Counters, in the order of `devmodel::state::Counters`.
    pub counters: [u64; COUNTERS],
}

/// State of a node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its directory.
    pub dir: PathBuf,
    /// VFs enabled.
    pub vfs: u8,
    /// The link layer of the ports.
    pub link_layer: LinkLayer,
    /// Its number among nodes on one wire.
    pub node_id: u16,
    /// Faults that are applied to frames on its wire.
    pub faults: Faults,
    /// The respects in which its adapter is as strict as a card.
    pub strict: Strict,
    /// The names and PCI addresses of its functions.
    pub naming: Naming,
    /// PIDs of the process that holds its uplink and of the one that captures its wire; 0 if hidden by another PID namespace.
    pub outlets: [Option<u32>; 2],
    /// Total number of outgoing frames dropped because the uplink ring was full.
    pub uplink_lost: u32,
    /// Programs on it, except for the calling one if it has nothing open.
    pub parties: Vec<PartyStatus>,
    /// The PF and the VFs.
    pub functions: Vec<FunctionStatus>,
    /// Memory in bytes that the whole node occupies.
    pub memory: u64,
    /// The part of it that drivers allocated or programs lent.
    pub driver_memory: u64,
    /// Number of programs that died on the node and were cleaned up after.
    pub reaped: u32,
}

impl Core {
    /// Cleans up after dead parties, and returns the state of the node.
    pub fn status(&self) -> Result<NodeStatus, NodeError> {
        self.reap()?;
        let (region, config) = (self.adapter.region(), self.adapter.config());
        let view = View {
            dir: &self.dir,
            map: &self.map,
            locks: self.locks,
            region,
            config,
            me: Some(self.me.slot),
        };
        Ok(view.status())
    }

    /// The address that was set for `fid`.
    pub fn address(&self, fid: u8) -> Option<FunctionAddress> {
        FunctionAddress::of(&self.map, fid)
    }
}

/// The parts of a node that reading its state requires. That takes no lock and changes nothing.
pub struct View<'a> {
    /// Its directory.
    pub dir: &'a Path,
    /// Its file.
    pub map: &'a Mapped,
    /// Locks by which programs find out which others are alive.
    pub locks: &'static LockFile,
    /// The adapter.
    pub region: &'a Region,
    /// The behaviour of the adapter.
    pub config: &'a Config,
    /// The calling party, if it is on the node.
    pub me: Option<u16>,
}

impl View<'_> {
    /// The status of the node.
    pub fn status(&self) -> NodeStatus {
        let header = self.map.header();
        let vfs = (header.vfs.load(Acquire) as u8).min(MAX_VFS);
        let parties = header.taken.iter().filter(|slot| *slot != 0);
        NodeStatus {
            dir: self.dir.into(),
            vfs,
            link_layer: self.config.link_layer,
            node_id: self.config.node_id,
            faults: self.config.faults,
            strict: self.config.strict,
            naming: self.map.naming().unwrap_or_default(),
            outlets: [Outlet::Uplink, Outlet::Capture].map(|which| self.outlet(which)),
            uplink_lost: OutletRing::of(self.region, Outlet::Uplink).lost(),
            parties: parties.filter_map(|slot| self.party(slot)).collect(),
            functions: (0..=vfs).map(|fid| self.function(fid)).collect(),
            memory: self.map.file().and_then(std::fs::File::metadata).map_or(0, |m| m.blocks() * 512),
            driver_memory: header.arena_used.load(Acquire) * PAGE as u64,
            reaped: header.reaped.load(Acquire),
        }
    }

    fn pid(&self, slot: u16) -> u32 {
        self.locks.holder(slot).unwrap_or_else(|| self.map.party(slot).pid.load(Acquire))
    }

    /// The process that consumes an outlet.
    fn outlet(&self, which: Outlet) -> Option<u32> {
        let opener = self.map.header().outlets[which as usize].holder.load(Acquire);
        let held = opener != 0 && party::is_there(self.map, self.locks, opener);
        held.then(|| self.pid(party::party_of(opener)))
    }

    fn party(&self, slot: u16) -> Option<PartyStatus> {
        let (place, ours) = (self.map.party(slot), self.me == Some(slot));
        let opened = |fid: &u8| self.map.functions()[usize::from(*fid)].openers.has(slot);
        let functions: Vec<u8> = (0..=MAX_VFS).filter(opened).collect();
        if ours && functions.is_empty() {
            return None;
        }
        let lives = ours || party::lives(self.map, self.locks, slot);
        let (wakes, ticks) = (place.wakes.load(Relaxed), place.ticks.load(Relaxed));
        Some(PartyStatus { party: slot, pid: self.pid(slot), lives, functions, wakes, ticks })
    }

    // Reads without the function's lock, which its program and peers need.
    fn function(&self, fid: u8) -> FunctionStatus {
        let region = self.region;
        let mut objects = vec![
            ("qp", region.used::<QpRow>(fid)),
            ("cq", region.used::<CqRow>(fid)),
            ("srq", region.used::<SrqRow>(fid)),
            ("mkey", region.used::<MkeyRow>(fid)),
            ("pd", region.used::<PdRow>(fid)),
            ("eq", region.used::<EqRow>(fid)),
            ("uar", region.used::<UarRow>(fid)),
            ("uctx", region.used::<UctxRow>(fid)),
        ];
        objects.retain(|(_, count)| *count != 0);
        let function = &self.map.functions()[usize::from(fid)];
        FunctionStatus {
            fid,
            address: FunctionAddress::of(self.map, fid),
            up: region.is_running(fid),
            parties: function.openers.iter().collect(),
            served: function.server.load(Relaxed) != 0,
            objects,
            counters: region.counters_since_reset(fid),
        }
    }
}
