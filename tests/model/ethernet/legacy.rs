//! The stock driver of a PF with VFs, in legacy mode: the commands that Linux 6.12 sends when VFs are enabled and for each `ip link set PF
//! vf N`, in its order, with its tables and groups (mlx5/core/eswitch.c, esw/legacy.c, esw/acl/*_lgcy.c, esw/qos.c).

use super::manager::*;
use hwspec::{
    cmd::{CmdOut, Opcode, adapter::QueryHcaCapIn, eswitch::*, flow::*},
    context::{
        CapType,
        eswitch::{EswitchFlowTableCaps, SchedulingContext},
        flow::*,
        vport::*,
    },
    eqe::{EventType, VportEvent},
    layout::{Layout, prefix},
};
use ironverbs_tests::bed::{Bed, COUNT, DROP};
use std::collections::{BTreeMap, BTreeSet};

type Mac = [u8; 6];

/// Entries of the forwarding database: those of addresses, then one for all groups and one for frames from the uplink.
const LOG_FDB: u8 = 22;
/// `modify_enable_mask`: destinations.
const LIST_CHANGES: u8 = 1 << 2;
/// `scheduling_hierarchy`: that of the e-switch.
const E_SWITCH: u8 = 2;
/// `modify_bitmask`: share and limit.
const SHARE_AND_LIMIT: u32 = 3;
/// The largest share according to the QoS page.
const MOST_SHARE: u32 = 100;
/// `mlx5_vport_state`: follow the link.
pub const AUTO: u8 = 2;

/// The driver's state for a vport.
#[derive(Default)]
struct Vport {
    mac: Mac,
    vlan: (u16, u8),
    spoofchk: bool,
    trusted: bool,
    ingress: Acl,
    egress: Acl,
    unicast: Vec<Mac>,
    multicast: Vec<Mac>,
    all_groups: bool,
    promiscuous: bool,
    element: Option<u32>,
    rates: [u32; 2],
    share: u32,
}

/// An access list, which frames a vport may send or receive: its table with groups, and entries by group.
#[derive(Default)]
struct Acl {
    counter: Option<u32>,
    table: Option<(u32, Vec<u32>)>,
    entries: Vec<u32>,
}

pub struct Pf {
    fdb: (u32, Vec<u32>),
    /// Entries by group and address: index, and destinations.
    rules: BTreeMap<(usize, Mac), (u32, Vec<u16>)>,
    next: u32,
    vports: Vec<Vport>,
    group: Option<u32>,
    /// Vport tables support pushing and popping VLAN tags.
    steering: bool,
}

impl Pf {
    /// `sriov_numvfs`: creates the e-switch's tables, then configures the PF's vport and those of the VFs, which are up and have reported
    /// their addresses.
    pub fn enable(bed: &mut Bed, vfs: u8) -> Self {
        bed.function(0);
        // From here on there is an event queue.
        bed.events(0);
        for fid in 0..=vfs {
            bed.function(fid);
            listen(bed, fid, &[super::packets::mac(fid)]);
        }
        // Frames pass VEPA's table first; it is empty and forwards to the next.
        let (vepa, _) = tables(bed, FDB, None, (1, 1), &[]);
        set_root(bed, FDB, None, vepa);
        let groups = [
            (OUTER, dmac([0xff; 6]), (1 << LOG_FDB) - 2),
            (OUTER, dmac([1, 0, 0, 0, 0, 0]), 1),
            (MISC, source(UPLINK), 1),
        ];
        let fdb = tables(bed, FDB, None, (2, LOG_FDB), &groups);
        let c = FlowTableContext::with(|s| s.table_miss_action(1).table_miss_id(fdb.0));
        let mut input = ModifyFlowTableIn::zeroed();
        input.set().table_type(FDB).table_id(vepa).modify_field_select(1).flow_table_context(c);
        let _: CmdOut = bed.command(0, Opcode::ModifyFlowTable, &input).unwrap();
        let vports = (0..=vfs).map(|_| Vport::default()).collect();
        let steering = has_tag_actions(bed);
        let mut pf = Self { fdb, rules: BTreeMap::new(), next: 0, vports, group: None, steering };
        pf.vports[0].trusted = true;
        pf.changed(bed, 0);
        for vf in 1..=vfs {
            pf.ingress(bed, vf);
            pf.egress(bed, vf);
            set_state(bed, vf, AUTO);
            set_mac_and_guid(bed, vf, [0; 6], 0);
            if !steering {
                set_vlan(bed, vf, 0, 0);
            }
            pf.changed(bed, vf);
        }
        pf
    }

    /// `ip link set PF vf N mac`.
    pub fn mac(&mut self, bed: &mut Bed, vf: u8, mac: Mac) {
        let [a, b, c, d, e, f] = mac;
        set_mac_and_guid(bed, vf, mac, u64::from_be_bytes([a, b, c, 0xff, 0xfe, d, e, f]));
        self.vports[usize::from(vf)].mac = mac;
        self.ingress(bed, vf);
    }

    /// `ip link set PF vf N vlan V qos Q`.
    pub fn vlan(&mut self, bed: &mut Bed, vf: u8, vlan: u16, qos: u8) {
        if !self.steering {
            set_vlan(bed, vf, vlan, qos);
        }
        self.vports[usize::from(vf)].vlan = (vlan, qos);
        self.ingress(bed, vf);
        self.egress(bed, vf);
    }

    /// `ip link set PF vf N spoofchk`.
    pub fn spoofchk(&mut self, bed: &mut Bed, vf: u8, on: bool) {
        self.vports[usize::from(vf)].spoofchk = on;
        self.ingress(bed, vf);
    }

    /// `ip link set PF vf N trust`.
    pub fn trust(&mut self, bed: &mut Bed, vf: u8, on: bool) {
        self.vports[usize::from(vf)].trusted = on;
        self.changed(bed, vf);
    }

    /// `ip link set PF vf N max_tx_rate M min_tx_rate N`, Mb/s.
    pub fn rate(&mut self, bed: &mut Bed, vf: u8, max: u32, min: u32) {
        let group = *self.group.get_or_insert_with(|| {
            let root = create_element(bed, SchedulingContext::zeroed());
            create_element(bed, SchedulingContext::with(|s| s.parent_element_id(root)))
        });
        let vport = &mut self.vports[usize::from(vf)];
        vport.element.get_or_insert_with(|| {
            let mut c = SchedulingContext::zeroed();
            c.set().element_type(1).element_attributes(vf.into()).parent_element_id(group);
            create_element(bed, c)
        });
        vport.rates[1] = min;
        let most = self.vports.iter().map(|vport| vport.rates[1]).max().unwrap_or(0);
        let divider = (most / MOST_SHARE).max(1);
        for vport in &mut self.vports {
            let share = vport.rates[1].div_ceil(divider).clamp(1, MOST_SHARE) * u32::from(most != 0);
            if let Some(element) = vport.element.filter(|_| vport.share != share) {
                vport.share = share;
                modify_element(bed, element, vport.rates[0], share);
            }
        }
        let vport = &mut self.vports[usize::from(vf)];
        if let Some(element) = vport.element.filter(|_| vport.rates[0] != max) {
            vport.rates[0] = max;
            modify_element(bed, element, max, vport.share);
        }
    }

    /// Handles the events that report changed contexts.
    pub fn attend(&mut self, bed: &mut Bed) {
        bed.run();
        for event in bed.events(0) {
            if event.event_type() == EventType::NicVportChange {
                self.changed(bed, event.data::<VportEvent>().vport_num() as u8);
            }
        }
    }

    /// Returns the number of frames of `vf` that the spoof check dropped, as `ip -s link` shows them.
    pub fn dropped(&self, bed: &mut Bed, vf: u8) -> u64 {
        counted(bed, self.vports[usize::from(vf)].ingress.counter.expect("a counter"))
    }

    /// `esw_vport_change_handle_locked`: turns a vport's address lists and promiscuity requests into entries, then arms its next change
    /// event.
    fn changed(&mut self, bed: &mut Bed, vf: u8) {
        let [(c, unicast), (_, multicast)] =
            [0, 1].map(|kind| context_of(bed, 0, (vf != 0).then_some(vf), kind));
        let vport = &mut self.vports[usize::from(vf)];
        (vport.unicast, vport.multicast) = (unicast, multicast);
        vport.promiscuous = vport.trusted && c.promisc_all();
        vport.all_groups = vport.trusted && (c.promisc_all() || c.promisc_mc());
        self.steer(bed);
        let mut c = NicVportContext::zeroed();
        c.set().arm_change_event(true).event_on_uc_address_change(true);
        c.set().event_on_mc_address_change(true).event_on_promisc_change(true);
        modify(bed, 0, (vf != 0).then_some(vf), CHANGE_EVENT, c, &[]).unwrap();
    }

    /// Updates the forwarding database to the vports' requests.
    fn steer(&mut self, bed: &mut Bed) {
        let mut wanted: BTreeMap<(usize, Mac), BTreeSet<u16>> = BTreeMap::new();
        let numbered = || self.vports.iter().zip(0u16..);
        for (vport, number) in numbered() {
            for mac in &vport.unicast {
                wanted.entry((0, *mac)).or_default().insert(number);
            }
            for mac in &vport.multicast {
                let all = numbered().filter(|(other, _)| other.all_groups).map(|(_, number)| number);
                wanted.entry((0, *mac)).or_default().extend(all.chain([number, UPLINK]));
            }
            if vport.all_groups {
                wanted.entry((1, [1, 0, 0, 0, 0, 0])).or_default().extend([number, UPLINK]);
            }
            if vport.promiscuous {
                wanted.entry((2, [0; 6])).or_default().insert(number);
            }
        }
        let gone: Vec<_> = self.rules.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for key in gone {
            let (index, _) = self.rules.remove(&key).unwrap();
            delete(bed, (FDB, None), self.fdb.0, index);
        }
        for (key, to) in wanted {
            let to: Vec<u16> = to.into_iter().collect();
            let value = if key.0 == 2 { source(UPLINK) } else { dmac(key.1) };
            let place = (self.fdb.0, self.fdb.1[key.0]);
            let (next, last) = (&mut self.next, (1 << LOG_FDB) - 3 + key.0 as u32);
            let fresh = || if key.0 == 0 { std::mem::replace(next, *next + 1) } else { last };
            let known = self.rules.get(&key);
            let changes = if known.is_some() { LIST_CHANGES } else { 0 };
            let index = known.map_or_else(fresh, |(index, _)| *index);
            if known.is_none_or(|(_, before)| *before != to) {
                rule(bed, &Rule { changes, ..forward(place, index, value, &to) }).unwrap();
                self.rules.insert(key, (index, to));
            }
        }
    }

    /// `esw_acl_ingress_lgcy_setup`: the first three of four groups allow untagged frames from its own address, untagged frames, and frames
    /// from its own address; the last drops.
    fn ingress(&mut self, bed: &mut Bed, vf: u8) {
        let vport = &mut self.vports[usize::from(vf)];
        let (has_vlan, spoof) = (vport.vlan != (0, 0), vport.spoofchk);
        let (push, tags) = (has_vlan && self.steering, has_vlan && !self.steering);
        let ones = |tag, mac: Mac| {
            let mut m = MatchHeaders::zeroed();
            m.set().cvlan_tag(tag).smac_47_16(u32::from_be_bytes(prefix(&mac)));
            m.set().smac_15_0(u16::from_be_bytes([mac[4], mac[5]]));
            outer(m)
        };
        let groups = [
            (OUTER, ones(true, [0xff; 6]), 1),
            (OUTER, ones(true, [0; 6]), 1),
            (OUTER, ones(false, [0xff; 6]), 1),
            (0, MatchParam::zeroed(), 1),
        ];
        let allow = match (tags, spoof) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            _ => 3,
        };
        let value = ones(false, if spoof { vport.mac } else { [0; 6] });
        let tci = u16::from(vport.vlan.1) << 13 | vport.vlan.0;
        let action = if push { ALLOW | PUSH } else { ALLOW };
        let mut entries = Vec::new();
        if has_vlan || spoof {
            entries.push((allow, value, action, (if push { 0x8100 } else { 0 }, if push { tci } else { 0 })));
        }
        if tags || spoof {
            entries.push((3, MatchParam::zeroed(), DROP, (0, 0)));
        }
        vport.ingress.set(bed, (INGRESS, vf, 2), &groups, &entries);
    }

    /// `esw_acl_egress_lgcy_setup`: allows only frames with the VLAN's tag.
    fn egress(&mut self, bed: &mut Bed, vf: u8) {
        let vport = &mut self.vports[usize::from(vf)];
        let tag = |vid| outer(MatchHeaders::with(|s| s.cvlan_tag(true).first_vid(vid)));
        let groups = [(OUTER, tag(0xfff), 1), (0, MatchParam::zeroed(), 1)];
        let action = if self.steering { ALLOW | POP } else { ALLOW };
        let entries = [(0, tag(vport.vlan.0), action, (0, 0)), (1, MatchParam::zeroed(), DROP, (0, 0))];
        let on = if vport.vlan != (0, 0) { 2 } else { 0 };
        vport.egress.set(bed, (EGRESS, vf, 1), &groups, &entries[..on]);
    }
}

impl Acl {
    /// Deletes the existing entries, then adds these, creating the table if necessary; without entries it deletes the table. Dropped frames
    /// are counted.
    fn set(
        &mut self,
        bed: &mut Bed,
        (kind, vf, log_size): (u8, u8, u8),
        groups: &[(u8, MatchParam, u32)],
        entries: &[(usize, MatchParam, u16, (u16, u16))],
    ) {
        let vport = Some(vf);
        if let Some((table, _)) = &self.table {
            self.entries.drain(..).for_each(|index| delete(bed, (kind, vport), *table, index));
        }
        let counter = *self.counter.get_or_insert_with(|| {
            let out: AllocFlowCounterOut =
                bed.command(0, Opcode::AllocFlowCounter, &AllocFlowCounterIn::zeroed()).unwrap();
            out.flow_counter_id()
        });
        if entries.is_empty() {
            return self.end(bed, kind, vf);
        }
        let (table, made) = self.table.get_or_insert_with(|| {
            let made = tables(bed, kind, vport, (0, log_size), groups);
            set_root(bed, kind, vport, made.0);
            made
        });
        for &(group, value, action, tag) in entries {
            let (place, index) = ((*table, made[group]), group as u32);
            let (counter, counts) = if action == DROP { (Some(counter), COUNT) } else { (None, 0) };
            let (action, push) = (action | counts, [tag, (0, 0)]);
            let one = Rule { kind, vport, action, counter, push, ..forward(place, index, value, &[]) };
            rule(bed, &one).unwrap();
            self.entries.push(index);
        }
    }

    fn end(&mut self, bed: &mut Bed, kind: u8, vf: u8) {
        if let Some((table, groups)) = self.table.take() {
            for group in groups {
                let mut input = DestroyFlowGroupIn::zeroed();
                input.set().table_type(kind).table_id(table).group_id(group);
                input.set().other_vport(true).vport_number(vf.into());
                let _: CmdOut = bed.command(0, Opcode::DestroyFlowGroup, &input).unwrap();
            }
            let mut input = DestroyFlowTableIn::zeroed();
            input.set().table_type(kind).table_id(table).other_vport(true).vport_number(vf.into());
            let _: CmdOut = bed.command(0, Opcode::DestroyFlowTable, &input).unwrap();
        }
        if let Some(counter) = self.counter.take() {
            let input = DeallocFlowCounterIn::with(|s| s.flow_counter_id(counter));
            let _: CmdOut = bed.command(0, Opcode::DeallocFlowCounter, &input).unwrap();
        }
    }
}

fn delete(bed: &mut Bed, (kind, vport): (u8, Option<u8>), table: u32, index: u32) {
    let mut input = DeleteFteIn::zeroed();
    input.set().table_type(kind).table_id(table).flow_index(index);
    input.set().other_vport(vport.is_some()).vport_number(vport.unwrap_or(0).into());
    let _: CmdOut = bed.command(0, Opcode::DeleteFlowTableEntry, &input).unwrap();
}

/// `esw_vst_mode_is_steering`.
fn has_tag_actions(bed: &mut Bed) -> bool {
    let op_mod = CapType::EswitchFlowTable.raw() as u16;
    let input = QueryHcaCapIn::zeroed();
    let out = bed.command_with(0, Opcode::QueryHcaCap, op_mod << 1 | 1, &input, &[], 0x1010).unwrap();
    let caps = EswitchFlowTableCaps::read(&out[0x10..]);
    caps.flow_table_properties_esw_acl_egress().pop_vlan()
        && caps.flow_table_properties_esw_acl_ingress().push_vlan()
}

fn create_element(bed: &mut Bed, c: SchedulingContext) -> u32 {
    let input = CreateSchedulingElementIn::with(|s| s.scheduling_hierarchy(E_SWITCH).scheduling_context(c));
    let out: CreateSchedulingElementOut =
        bed.command(0, Opcode::CreateSchedulingElement, &input).expect("an element");
    out.scheduling_element_id()
}

fn modify_element(bed: &mut Bed, element: u32, limit: u32, share: u32) {
    let c = SchedulingContext::with(|s| s.max_average_bw(limit).bw_share(share));
    let mut input = ModifySchedulingElementIn::zeroed();
    input.set().scheduling_hierarchy(E_SWITCH).scheduling_element_id(element);
    input.set().modify_bitmask(SHARE_AND_LIMIT).scheduling_context(c);
    let _: ModifySchedulingElementOut = bed.command(0, Opcode::ModifySchedulingElement, &input).unwrap();
}
