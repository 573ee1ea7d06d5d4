//! Frames by what the e-switch was told: addresses of ports, and the tables and settings of its manager.
//!
//! A runner keeps a copy of its own, made anew when the region says that something changed, so nobody waits for the manager's lock. All
//! of it is used only where [`Region::is_switched`](crate::region::Region) says so.

use crate::{
    Adapter, Config,
    mlx5::ethernet,
    region::{FunctionSet, GROUP_STRANGERS, Region, Sync},
    state::{FlowEntryRow, FlowGroupRow, FlowTableRow, FunctionRow, L2Row, MATCH, VportRow},
};
use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};
use zerocopy::FromZeros;

/// The uplink's number, where frames come from.
const UPLINK: u16 = 0xffff;
/// Tables a frame passes at most.
const STEPS: usize = 64;
/// Bytes of headers that are looked at, of a frame with a tag more.
const HEAD: usize = 256;
/// Where a tag lies, and how long it is.
pub(super) const TAG_AT: usize = 12;
const TAG: usize = 4;
/// `VportRow::insert`: where there is no tag yet, always.
const IF_NONE: u32 = 1;
const ALWAYS: u32 = 3;

/// A runner's copy.
#[derive(Default)]
pub(super) struct Switch {
    generation: u32,
    ports: Vec<Port>,
    owners: HashMap<[u8; 6], FunctionSet>,
    tables: HashMap<u32, Table>,
    root: Option<u32>,
    /// Addresses the port takes from the wire, where it does not take all.
    from_wire: Option<HashSet<[u8; 6]>>,
}

struct Port {
    set: VportRow,
    strangers: bool,
}

struct Table {
    miss: Option<u32>,
    entries: Vec<Entry>,
}

struct Entry {
    mask: [u8; MATCH],
    port_mask: u16,
    row: FlowEntryRow,
}

/// The way of a frame through the e-switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    /// The tag it gets on its way in.
    pub tag: Option<u16>,
    /// Functions that get it.
    pub functions: FunctionSet,
    /// Those of them that get it without its tag.
    pub stripped: FunctionSet,
    /// It leaves the adapter.
    pub uplink: bool,
}

/// Where tables lead.
#[derive(Default)]
struct Found {
    functions: FunctionSet,
    uplink: bool,
    matched: bool,
    dropped: bool,
}

impl Switch {
    /// Makes the copy anew if something changed.
    pub(super) fn refresh(&mut self, adapter: &Adapter) {
        let region = adapter.region();
        let generation = region.switch_generation();
        if generation != self.generation {
            *self = Self::read(region, adapter.config());
            // What changed meanwhile is seen next time.
            self.generation = generation;
        }
    }

    fn read(region: &Region, config: &Config) -> Self {
        let mut switch = Self { root: region.forwarding_root(), ..Self::default() };
        for fid in region.functions_there() {
            let f: FunctionRow = region.look(fid, 0).unwrap_or_else(FunctionRow::new_zeroed);
            let set = region.vport(fid);
            let mac = if set.mac == [0; 6] { f.mac } else { set.mac };
            let listed = f.unicast().iter().map(|entry| hwspec::layout::prefix(&entry.to_be_bytes()[2..]));
            for mac in listed.chain([mac]).filter(|mac| *mac != [0; 6]) {
                *switch.owners.entry(mac).or_default() |= 1 << fid;
            }
            let strangers = region.sync(fid, Sync::Group).load(Relaxed) & GROUP_STRANGERS != 0;
            switch.ports.push(Port { set, strangers });
        }
        // A driver that manages the switch says which addresses the port takes; without one it takes those of its functions.
        if config.strict.owner && region.is_running(0) && !switch.ports.iter().any(|port| port.strangers) {
            switch.from_wire = Some(region.objects::<L2Row>(0).map(|(_, row)| row.mac).collect());
        }
        let groups: HashMap<u32, FlowGroupRow> = region.objects(0).collect();
        for (index, table) in region.objects::<FlowTableRow>(0).filter(|(_, table)| table.kind != 0) {
            let miss = (table.miss_action != 0).then_some(table.miss);
            switch.tables.insert(index, Table { miss, entries: Vec::new() });
        }
        for (_, row) in region.objects::<FlowEntryRow>(0) {
            let (Some(table), Some(group)) = (switch.tables.get_mut(&row.table), groups.get(&row.group))
            else {
                continue;
            };
            table.entries.push(Entry { mask: group.mask, port_mask: group.port as u16, row });
        }
        switch.tables.values_mut().for_each(|table| table.entries.sort_by_key(|entry| entry.row.flow));
        switch
    }

    /// Finds the way of a frame of `from` (`None`: the uplink) that begins with `head` and has `len` bytes.
    pub(super) fn route(&self, adapter: &Adapter, from: Option<u8>, head: &[u8], len: usize) -> Route {
        let mut route = Route::default();
        let mut bytes = head[..head.len().min(HEAD)].to_vec();
        let Some(key) = ethernet::key(&bytes, len) else { return route };
        let tagged = |key: &[u8; MATCH]| key[0x10 + 2] & 0x80 != 0;
        let mut key = *key.as_bytes();
        if let Some(port) = from.and_then(|from| self.ports.get(usize::from(from))) {
            if !self.passes(adapter, &port.set, port.set.ingress, &key, len) {
                return route;
            }
            if port.set.insert == ALWAYS || port.set.insert == IF_NONE && !tagged(&key) {
                route.tag = Some(port.set.tci);
                insert_tag(&mut bytes, port.set.tci);
                let Some(with_tag) = ethernet::key(&bytes, len + TAG) else { return route };
                key = *with_tag.as_bytes();
            }
        }
        let found = self.forward(adapter, from, &bytes, &key, len);
        route.uplink = found.uplink && from.is_some();
        for fid in (0..self.ports.len() as u8).filter(|fid| found.functions & 1 << fid != 0) {
            let set = &self.ports[usize::from(fid)].set;
            if !adapter.is_there(fid) || !self.passes(adapter, set, set.egress, &key, len) {
                continue;
            }
            route.functions |= 1 << fid;
            if set.strip != 0 && tagged(&key) {
                route.stripped |= 1 << fid;
            }
        }
        route
    }

    /// Whether a port lets a frame through, by its link and by the tables that begin with `table`, index plus one.
    fn passes(&self, adapter: &Adapter, set: &VportRow, table: u32, key: &[u8; MATCH], len: usize) -> bool {
        let down = set.admin_state == 1;
        let refused = |table| {
            let mut found = Found::default();
            self.walk(adapter.region(), (table, 0), key, len, &mut found);
            found.dropped
        };
        !down && !table.checked_sub(1).is_some_and(refused)
    }

    fn forward(
        &self,
        adapter: &Adapter,
        from: Option<u8>,
        bytes: &[u8],
        key: &[u8; MATCH],
        len: usize,
    ) -> Found {
        let mac: [u8; 6] = hwspec::layout::prefix(bytes);
        let group = mac[0] & 1 != 0;
        let mut found = Found::default();
        if from.is_none() && !group && self.from_wire.as_ref().is_some_and(|known| !known.contains(&mac)) {
            return found;
        }
        let Some(root) = self.root else {
            if group {
                (found.functions, found.uplink) =
                    (adapter.group(from).fold(0, |set, fid| set | 1 << fid), true);
            } else if let Some(owners) = self.owners.get(&mac) {
                found.functions = *owners;
            } else {
                (found.functions, found.uplink) =
                    (adapter.strangers(from).fold(0, |set, fid| set | 1 << fid), true);
            }
            return found;
        };
        self.walk(adapter.region(), (root, from.map_or(UPLINK, u16::from)), key, len, &mut found);
        // What no entry is for leaves the adapter, if it comes from within.
        found.uplink |= !found.matched;
        if let Some(from) = from.filter(|_| group) {
            found.functions &= !(1 << from);
        }
        found
    }

    /// Leads a frame from vport `port` through the tables that begin with `table`.
    fn walk(
        &self,
        region: &Region,
        (table, port): (u32, u16),
        key: &[u8; MATCH],
        len: usize,
        found: &mut Found,
    ) {
        let mut waiting = vec![table];
        for _ in 0..STEPS {
            let Some(table) = waiting.pop().and_then(|index| self.tables.get(&index)) else { break };
            let Some(entry) = table.entries.iter().find(|entry| entry.matches(key, port)) else {
                waiting.extend(table.miss);
                continue;
            };
            let row = &entry.row;
            found.matched = true;
            if row.action & FlowEntryRow::COUNT != 0 {
                for counter in row.counters.iter().take(row.count[1] as usize) {
                    if let Some([packets, octets]) = region.flow_count(*counter) {
                        packets.fetch_add(1, Relaxed);
                        octets.fetch_add(len as u64, Relaxed);
                    }
                }
            }
            if row.action & FlowEntryRow::DROP != 0 {
                found.dropped = true;
                continue;
            }
            for (i, word) in row.vports[..4].iter().enumerate() {
                found.functions |= FunctionSet::from(*word) << (32 * i);
            }
            found.uplink |= row.vports[4] & FlowEntryRow::UPLINK != 0;
            waiting.extend(row.to.iter().take(row.count[0] as usize).map(|to| to & 0xff_ffff));
        }
    }
}

impl Entry {
    fn matches(&self, key: &[u8; MATCH], port: u16) -> bool {
        let same = |((mask, value), key): ((&u8, &u8), &u8)| (value ^ key) & mask == 0;
        (self.row.port as u16 ^ port) & self.port_mask == 0
            && self.mask.iter().zip(&self.row.value).zip(key).all(same)
    }
}

/// Puts a tag between the addresses and the type of a frame.
pub(super) fn insert_tag(bytes: &mut Vec<u8>, tci: u16) {
    let [a, b] = tci.to_be_bytes();
    bytes.splice(TAG_AT..TAG_AT, [0x81, 0x00, a, b]);
}

/// Takes the tag off a frame that has one.
pub(super) fn remove_tag(bytes: &mut Vec<u8>) {
    bytes.drain(TAG_AT..TAG_AT + TAG);
}
