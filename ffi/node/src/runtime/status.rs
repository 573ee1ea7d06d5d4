//! What a node looks like from outside.

use super::{
    FunctionAddress, NodeError,
    core::Core,
    file::{PAGE, PARTIES},
    party,
};
use devmodel::{
    LinkLayer,
    region::Outlet,
    state::{COUNTERS, CqRow, EqRow, MkeyRow, PdRow, QpRow, SrqRow, UarRow, UctxRow},
    wire::Faults,
};
use std::{os::unix::fs::MetadataExt, path::PathBuf, sync::atomic::Ordering::*};

/// A program on the node.
#[derive(Clone, Debug)]
pub struct PartyStatus {
    /// Its number.
    pub party: u8,
    /// Process id as we see it; 0 if another PID namespace hides it.
    pub pid: u32,
    /// Functions it has open.
    pub functions: Vec<u8>,
    /// How often its parked thread was woken by somebody.
    pub wakes: u64,
    /// How often its parked thread woke because a time had come.
    pub ticks: u64,
}

/// A function.
#[derive(Clone, Debug)]
pub struct FunctionStatus {
    /// Number; 0 is the PF.
    pub fid: u8,
    /// IP address that was set.
    pub address: Option<FunctionAddress>,
    /// Brought up by a driver.
    pub up: bool,
    /// Parties that have it open.
    pub parties: Vec<u8>,
    /// Its party serves it to a client outside of the node.
    pub served: bool,
    /// Objects by kind, those that are there at all.
    pub objects: Vec<(&'static str, u32)>,
    /// Counters, in the order of `devmodel::state::Counters`.
    pub counters: [u64; COUNTERS],
}

/// A node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its directory.
    pub dir: PathBuf,
    /// VFs enabled.
    pub vfs: u8,
    /// What the ports speak.
    pub link_layer: LinkLayer,
    /// Its number among nodes on one wire.
    pub node_id: u16,
    /// What befalls frames on its wire.
    pub faults: Faults,
    /// Process that holds its uplink, and the one that captures its wire; 0 where another PID namespace hides it.
    pub outlets: [Option<u32>; 2],
    /// Programs that live, but for the one that asks if it has nothing open.
    pub parties: Vec<PartyStatus>,
    /// The PF and the VFs.
    pub functions: Vec<FunctionStatus>,
    /// Bytes of memory the whole node takes.
    pub memory: u64,
    /// Bytes of it that drivers allocated, and programs lent.
    pub driver_memory: u64,
    /// Programs that died on the node and were cleaned up after.
    pub reaped: u32,
}

impl Core {
    /// Cleans up after the dead and looks at what is there.
    pub fn status(&self) -> Result<NodeStatus, NodeError> {
        self.reap()?;
        let header = self.map.header();
        let vfs = header.vfs.load(Acquire) as u8;
        let parties = (1..PARTIES as u16).map(|slot| slot as u8).filter_map(|slot| self.party_status(slot));
        let functions = (0..=vfs).map(|fid| self.function_status(fid));
        Ok(NodeStatus {
            dir: self.dir.clone(),
            vfs,
            link_layer: self.adapter.config().link_layer,
            node_id: self.adapter.config().node_id,
            faults: self.adapter.config().faults,
            outlets: [Outlet::Uplink, Outlet::Capture]
                .map(|which| self.holder(which).map(|slot| self.pid(slot))),
            parties: parties.collect(),
            functions: functions.collect(),
            memory: self.map.file.metadata().map_or(0, |m| m.blocks() * 512),
            driver_memory: header.arena_used.load(Acquire) * PAGE as u64,
            reaped: header.reaped.load(Acquire),
        })
    }

    fn party_status(&self, slot: u8) -> Option<PartyStatus> {
        let place = &self.map.parties()[usize::from(slot)];
        let ours = slot == self.me.slot;
        if !ours && !party::lives(&self.map, self.locks, slot) {
            return None;
        }
        let functions: Vec<u8> = (0..=127).filter(|fid| self.has_open(slot, *fid)).collect();
        if ours && functions.is_empty() {
            return None;
        }
        let pid = self.pid(slot);
        let (wakes, ticks) = (place.wakes.load(Relaxed), place.ticks.load(Relaxed));
        Some(PartyStatus { party: slot, pid, functions, wakes, ticks })
    }

    // Without its lock, for who holds that holds up the function's own program and its peers.
    fn function_status(&self, fid: u8) -> FunctionStatus {
        let region = self.adapter.region();
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
        FunctionStatus {
            fid,
            address: self.address(fid),
            up: region.is_running(fid),
            parties: self.openers(fid).collect(),
            served: self.server(fid) != 0,
            objects,
            counters: region.counters_since_reset(fid),
        }
    }
}
