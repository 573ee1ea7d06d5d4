//! Forwarding by the e-switch's settings: addresses of ports, and the tables and settings of its manager.
//!
//! Each runner has its own copy, rebuilt when the region's switch generation changes, so that no runner waits for the manager's
//! lock. The copy is only used if [`Region::is_switched`](crate::region::Region).

use super::{
    macs::Macs,
    tags::{self, Tags},
};
use crate::{
    Adapter, Config, LinkLayer,
    mlx5::ethernet,
    region::{FunctionSet, Region},
    state::{FlowEntryRow, FlowGroupRow, FlowTableRow, L2Row, MATCH, VportRow},
};
use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

/// The uplink's vport number, as the source of frames.
const UPLINK: u16 = 0xffff;
/// Maximum number of tables that a frame passes.
const STEPS: usize = 64;
/// Bytes of headers examined, including one additional tag.
const HEAD: usize = 256;
/// `VportRow::insert`: only if there is no tag yet, or always.
const IF_NONE: u32 = 1;
const ALWAYS: u32 = 3;

/// A runner's copy of the e-switch's settings.
#[derive(Default)]
pub(super) struct Switch {
    macs: Macs,
    ports: Vec<VportRow>,
    tables: HashMap<u32, Table>,
    root: Option<u32>,
    /// Addresses that the port accepts from the wire; `None` accepts all.
    from_wire: Option<HashSet<[u8; 6]>>,
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

/// Copies of a frame: destination function or uplink (`None`), and the changes to its tags.
pub(super) type Route = Vec<(Option<u8>, Tags)>;

/// A frame at some point on its way.
#[derive(Clone)]
struct Form {
    head: Vec<u8>,
    len: usize,
    key: [u8; MATCH],
    tags: Tags,
}

/// Result of walking the tables.
struct Found {
    /// The frame as received, followed by its form after each change of its tags.
    forms: Vec<Form>,
    /// Functions, true for the uplink as well, and the index of the form that goes there.
    to: Vec<(FunctionSet, bool, usize)>,
    /// The form at the last matching entry.
    last: usize,
    matched: bool,
    dropped: bool,
}

impl Switch {
    /// Rebuilds the copy if the settings have changed.
    pub(super) fn refresh(&mut self, adapter: &Adapter) {
        if self.macs.is_old(adapter.region()) {
            *self = Self::read(adapter.region(), adapter.config());
        }
    }

    fn read(region: &Region, config: &Config) -> Self {
        // Read first, because it records the generation of the copy; later changes are seen at the next refresh.
        let macs = Macs::read(region);
        let ports = region.functions_there().map(|fid| region.vport(fid)).collect();
        let mut switch = Self { macs, ports, root: region.forwarding_root(), ..Self::default() };
        // If the PF's driver manages the switch, it sets the addresses that the port accepts; without a driver the port accepts
        // those of its functions.
        if config.strict.owner && region.is_running(0) && !switch.macs.takes_strangers() {
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

    /// Finds the destinations of a whole frame of `from`. A frame from outside (`None`) is not sent back there.
    pub(super) fn ways(&mut self, adapter: &Adapter, from: Option<u8>, whole: &[u8]) -> Route {
        if adapter.config().link_layer == LinkLayer::Ethernet && adapter.region().is_switched() {
            self.refresh(adapter);
            return self.route(adapter, from, whole, whole.len());
        }
        if let Some(to) = adapter.owner(whole) {
            return vec![(Some(to), Tags::default())];
        }
        // Functions with other addresses than their initial ones check for themselves if a unicast frame is for them.
        let inside = adapter.takers(from, adapter.is_for_group(whole)).map(Some);
        inside.chain(from.map(|_| None)).map(|to| (to, Tags::default())).collect()
    }

    /// Finds the route of a frame of `from` (`None`: the uplink) with the first bytes `head` and a total of `len` bytes.
    pub(super) fn route(&self, adapter: &Adapter, from: Option<u8>, head: &[u8], len: usize) -> Route {
        let mut route = Route::new();
        let Some(form) = self.admit(adapter, from, &head[..head.len().min(HEAD)], len) else { return route };
        let sender = from.filter(|_| form.is_for_group()).map_or(0, |fid| 1 << fid);
        let Found { forms, to, .. } = self.forward(adapter, from, form);
        for (functions, uplink, at) in to {
            if uplink && from.is_some() && !route.iter().any(|(to, _)| to.is_none()) {
                route.push((None, forms[at].tags));
            }
            for fid in (0..self.ports.len() as u8).filter(|fid| functions & !sender & 1 << fid != 0) {
                let set = &self.ports[usize::from(fid)];
                if !adapter.is_there(fid) || route.iter().any(|(to, _)| *to == Some(fid)) {
                    continue;
                }
                let Some(mut form) = self.pass(adapter, set, set.egress, forms[at].clone()) else { continue };
                if set.strip != 0 && form.is_tagged() {
                    form.tags.pop();
                }
                route.push((Some(fid), form.tags));
            }
        }
        route
    }

    /// Admits a frame into the switch, if its source port permits it.
    fn admit(&self, adapter: &Adapter, from: Option<u8>, head: &[u8], len: usize) -> Option<Form> {
        let form = Form::of(head.to_vec(), len, Tags::default())?;
        let Some(port) = from.and_then(|from| self.ports.get(usize::from(from))) else { return Some(form) };
        let form = self.pass(adapter, port, port.ingress, form)?;
        let inserts = port.insert == ALWAYS || port.insert == IF_NONE && !form.is_tagged();
        match inserts {
            true => form.changed(0, &[tags::customer(port.tci)]),
            false => Some(form),
        }
    }

    /// Applies the tables starting at `table` (index plus one) of a port to a frame. Returns `None` if they drop it or the link is down.
    fn pass(&self, adapter: &Adapter, set: &VportRow, table: u32, form: Form) -> Option<Form> {
        if set.admin_state == 1 {
            return None;
        }
        let Some(first) = table.checked_sub(1) else { return Some(form) };
        let mut found = self.walk(adapter.region(), (first, 0), form);
        (!found.dropped).then(|| found.forms.swap_remove(found.last))
    }

    fn forward(&self, adapter: &Adapter, from: Option<u8>, form: Form) -> Found {
        let mac: [u8; 6] = hwspec::layout::prefix(&form.head);
        let group = form.is_for_group();
        if from.is_none() && !group && self.from_wire.as_ref().is_some_and(|known| !known.contains(&mac)) {
            return Found::new(form);
        }
        let Some(root) = self.root else {
            let mut found = Found::new(form);
            found.to.push(match self.macs.owners(mac).filter(|_| !group) {
                Some(owners) => (owners, false, 0),
                None => (adapter.takers(from, group).fold(0, |set, fid| set | 1 << fid), true, 0),
            });
            return found;
        };
        let mut found = self.walk(adapter.region(), (root, from.map_or(UPLINK, u16::from)), form);
        // A frame from within the adapter that no entry matches goes to the uplink.
        if !found.matched {
            found.to.push((0, true, 0));
        }
        found
    }

    /// Passes a frame from vport `port` through the tables, starting at `table`.
    fn walk(&self, region: &Region, (table, port): (u32, u16), form: Form) -> Found {
        let mut found = Found::new(form);
        let mut waiting = vec![(table, 0)];
        for _ in 0..STEPS {
            let Some((index, mut at)) = waiting.pop() else { break };
            let Some(table) = self.tables.get(&index) else { break };
            let Some(entry) = table.entries.iter().find(|entry| entry.matches(&found.forms[at].key, port))
            else {
                waiting.extend(table.miss.map(|miss| (miss, at)));
                continue;
            };
            let row = &entry.row;
            found.matched = true;
            if row.action & FlowEntryRow::COUNT != 0 {
                for counter in row.counters.iter().take(row.count[1] as usize) {
                    if let Some([packets, octets]) = region.flow_count(*counter) {
                        packets.fetch_add(1, Relaxed);
                        octets.fetch_add(found.forms[at].len as u64, Relaxed);
                    }
                }
            }
            if row.action & FlowEntryRow::DROP != 0 {
                found.dropped = true;
                continue;
            }
            let (pops, pushed) = row.tags();
            if pops != 0 || !pushed.is_empty() {
                let Some(form) = found.forms[at].clone().changed(pops, pushed) else { continue };
                at = found.forms.len();
                found.forms.push(form);
            }
            found.last = at;
            let functions = (0..4).fold(0, |set, i| set | FunctionSet::from(row.vports[i]) << (32 * i));
            found.to.push((functions, row.vports[4] & FlowEntryRow::UPLINK != 0, at));
            waiting.extend(row.to.iter().take(row.count[0] as usize).map(|to| (to & 0xff_ffff, at)));
        }
        found
    }
}

impl Found {
    fn new(form: Form) -> Self {
        Self { forms: vec![form], to: Vec::new(), last: 0, matched: false, dropped: false }
    }
}

impl Form {
    fn of(head: Vec<u8>, len: usize, tags: Tags) -> Option<Self> {
        let key = *ethernet::key(&head, len)?.as_bytes();
        Some(Self { head, len, key, tags })
    }

    /// The form after removing `pops` tags and adding `pushed`.
    fn changed(mut self, pops: usize, pushed: &[u32]) -> Option<Self> {
        let mut step = Tags::default();
        (0..pops).for_each(|_| step.pop());
        pushed.iter().for_each(|tag| step.push(*tag));
        let before = self.head.len();
        step.apply(&mut self.head);
        let len = (self.len + self.head.len()).checked_sub(before)?;
        (0..pops).for_each(|_| self.tags.pop());
        pushed.iter().for_each(|tag| self.tags.push(*tag));
        Self::of(self.head, len, self.tags)
    }

    /// IEEE 802.3, 3.2.3: the first bit on the wire, which is the lowest bit of the first byte.
    fn is_for_group(&self) -> bool {
        self.head[0] & 1 != 0
    }

    fn is_tagged(&self) -> bool {
        self.key[0x10 + 2] & 0x80 != 0
    }
}

impl Entry {
    fn matches(&self, key: &[u8; MATCH], port: u16) -> bool {
        let same = |((mask, value), key): ((&u8, &u8), &u8)| (value ^ key) & mask == 0;
        (self.row.port as u16 ^ port) & self.port_mask == 0
            && self.mask.iter().zip(&self.row.value).zip(key).all(same)
    }
}
