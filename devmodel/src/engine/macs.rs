//! The MACs of an adapter's functions, and a flag that is set if a function accepts frames for others. A link uses them to select the
//! frames to deliver.

use crate::{
    Adapter,
    region::{FunctionSet, GROUP_STRANGERS, Region, Sync},
    state::FunctionRow,
};
use std::{collections::HashMap, sync::atomic::Ordering::Relaxed};
use zerocopy::FromZeros;

/// A copy of the functions' address lists and settings. Empty until the first refresh.
///
/// On an adapter without any such settings no copy is made: functions have their initial MACs
/// ([`fid_of_mac`](crate::identity::fid_of_mac)).
#[derive(Default)]
pub struct Macs {
    generation: u32,
    owners: HashMap<[u8; 6], FunctionSet>,
    strangers: bool,
}

impl Macs {
    /// Rebuilds the copy if the settings have changed.
    pub fn refresh(&mut self, adapter: &Adapter) {
        if self.is_old(adapter.region()) {
            *self = Self::read(adapter.region());
        }
    }

    pub(super) fn is_old(&self, region: &Region) -> bool {
        self.generation != region.switch_generation()
    }

    pub(super) fn read(region: &Region) -> Self {
        // An address that changes during the copy is seen at the next refresh.
        let mut macs = Self { generation: region.switch_generation(), ..Self::default() };
        for fid in region.functions_there() {
            let f: FunctionRow = region.look(fid, 0).unwrap_or_else(FunctionRow::new_zeroed);
            let set = region.vport(fid).mac;
            let mac = if set == [0; 6] { f.mac } else { set };
            let listed = f.unicast().iter().map(|entry| hwspec::layout::prefix(&entry.to_be_bytes()[2..]));
            for mac in listed.chain([mac]).filter(|mac| *mac != [0; 6]) {
                *macs.owners.entry(mac).or_default() |= 1 << fid;
            }
            macs.strangers |= region.sync(fid, Sync::Group).load(Relaxed) & GROUP_STRANGERS != 0;
        }
        macs
    }

    /// The functions that have `mac`, if any.
    pub(super) fn owners(&self, mac: [u8; 6]) -> Option<FunctionSet> {
        self.owners.get(&mac).copied()
    }

    /// True if a function has `mac`: initially, by assignment, or in its driver's list.
    pub fn has(&self, mac: [u8; 6]) -> bool {
        self.owners.contains_key(&mac)
    }

    /// True if a function accepts unicast frames for others.
    pub fn takes_strangers(&self) -> bool {
        self.strangers
    }
}
