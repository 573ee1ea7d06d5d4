//! The commands that the stock driver of a PF sends to set up the e-switch in legacy mode (mlx5/core/eswitch.c, esw/legacy.c, esw/acl/*_lgcy.c).

use super::packets::*;
use hwspec::{
    cmd::{CmdOut, Opcode, adapter::*, eswitch::*, flow::*, vport::*},
    context::{CapType, caps::HcaCap, eswitch::*, flow::*, vport::*},
    layout::{Layout, prefix},
};
use ironverbs_tests::bed::{Access, Bed, CommandError, FORWARD, Nic, Path, Qp, Send, Wr};

pub const UPLINK: u16 = 0xffff;
pub const FDB: u8 = 4;
pub const INGRESS: u8 = 3;
pub const EGRESS: u8 = 2;
pub const ALLOW: u16 = 1;
/// Action bits for VLAN tags.
pub const POP: u16 = 0x80;
pub const PUSH: u16 = 0x100;
pub const POP_2: u16 = 0x400;
pub const PUSH_2: u16 = 0x800;
pub const MISC: u8 = 2;
pub const PERMANENT: u32 = 1 << 3;
pub const CHANGE_EVENT: u32 = 1 << 5;
pub const NODE_GUID: u32 = 1 << 9;
pub const LIST: u32 = 1 << 2;
pub const PROMISC: u32 = 1 << 4;
/// An address assigned by an administrator.
pub const GIVEN: [u8; 6] = [0xa0, 0x36, 0x9f, 1, 2, 3];

pub fn word(mac: [u8; 6]) -> MacAddressLayout {
    MacAddressLayout::with(|s| {
        s.mac_addr_47_32(u16::from_be_bytes(prefix(&mac)))
            .mac_addr_31_0(u32::from_be_bytes(prefix(&mac[2..])))
    })
}

pub fn modify(
    bed: &mut Bed,
    by: u8,
    vport: Option<u8>,
    fields: u32,
    c: NicVportContext,
    list: &[[u8; 6]],
) -> Result<(), CommandError> {
    let mut input = ModifyNicVportContextIn::zeroed();
    input.set().field_select(fields.to_be_bytes()).nic_vport_context(c);
    input.set().other_vport(vport.is_some()).vport_number(vport.unwrap_or(0).into());
    let list: Vec<u8> = list.iter().flat_map(|mac| word(*mac).as_bytes().to_vec()).collect();
    bed.command_with(by, Opcode::ModifyNicVportContext, 0, &input, &list, 0x10).map(drop)
}

pub fn context(bed: &mut Bed, by: u8, vport: Option<u8>) -> (NicVportContext, Vec<[u8; 6]>) {
    context_of(bed, by, vport, 0)
}

/// Returns a vport's context and its list of the kind `allowed_list_type`.
pub fn context_of(bed: &mut Bed, by: u8, vport: Option<u8>, kind: u8) -> (NicVportContext, Vec<[u8; 6]>) {
    let mut input = QueryNicVportContextIn::zeroed();
    input.set().other_vport(vport.is_some()).vport_number(vport.unwrap_or(0).into()).allowed_list_type(kind);
    let out = bed.command_with(by, Opcode::QueryNicVportContext, 0, &input, &[], 0x110 + 128 * 8);
    let out = out.expect("a context");
    let c = QueryNicVportContextOut::read(&out).nic_vport_context();
    let list = out[0x110..].chunks(8).take(c.allowed_list_size().into()).map(|e| prefix(&e[2..])).collect();
    (c, list)
}

pub fn mac_in(c: &NicVportContext) -> [u8; 6] {
    prefix(&c.permanent_address().as_bytes()[2..])
}

/// Sets an administrator's address.
pub fn set_mac(bed: &mut Bed, vf: u8, mac: [u8; 6]) {
    set_mac_and_guid(bed, vf, mac, 0x1122_3344_5566_7700 + u64::from(vf));
}

/// `mlx5_modify_nic_vport_mac_address` and `mlx5_modify_nic_vport_node_guid`.
pub fn set_mac_and_guid(bed: &mut Bed, vf: u8, mac: [u8; 6], guid: u64) {
    let c = NicVportContext::with(|s| s.permanent_address(word(mac)).node_guid(guid));
    modify(bed, 0, Some(vf), PERMANENT, c, &[]).unwrap();
    modify(bed, 0, Some(vf), NODE_GUID, c, &[]).unwrap();
}

/// Writes a driver's list of unicast addresses.
pub fn listen(bed: &mut Bed, fid: u8, macs: &[[u8; 6]]) {
    let c = NicVportContext::with(|s| s.allowed_list_size(macs.len() as u16));
    modify(bed, fid, None, LIST, c, macs).unwrap();
}

/// `ip link set PF vf N state`.
pub fn set_state(bed: &mut Bed, vf: u8, state: u8) {
    let input = ModifyVportStateIn::with(|s| s.other_vport(true).vport_number(vf.into()).admin_state(state));
    bed.command_with(0, Opcode::ModifyVportState, 1, &input, &[], 0x10).unwrap();
}

/// Makes `table` the root of its kind, for one vport or for all.
pub fn set_root(bed: &mut Bed, kind: u8, vport: Option<u8>, table: u32) {
    let mut input = SetFlowTableRootIn::zeroed();
    input.set().table_type(kind).table_id(table);
    input.set().other_vport(vport.is_some()).vport_number(vport.unwrap_or(0).into());
    let _: CmdOut = bed.command(0, Opcode::SetFlowTableRoot, &input).expect("a root");
}

/// Creates a table of the e-switch with one group for each mask, in order. Returns its number and theirs.
pub fn tables(
    bed: &mut Bed,
    kind: u8,
    vport: Option<u8>,
    (level, log_size): (u8, u8),
    groups: &[(u8, MatchParam, u32)],
) -> (u32, Vec<u32>) {
    let c = FlowTableContext::with(|s| s.level(level).log_size(log_size));
    let mut input = CreateFlowTableIn::zeroed();
    input.set().table_type(kind).flow_table_context(c);
    input.set().other_vport(vport.is_some()).vport_number(vport.unwrap_or(0).into());
    let out: CreateFlowTableOut = bed.command(0, Opcode::CreateFlowTable, &input).expect("a table");
    let table = out.table_id();
    let mut first = 0;
    let mut made = Vec::new();
    for (enable, mask, len) in groups {
        let mut input = CreateFlowGroupIn::zeroed();
        input.set().table_type(kind).table_id(table).start_flow_index(first).end_flow_index(first + len - 1);
        input.set().match_criteria_enable(*enable).match_criteria(*mask);
        input.set().other_vport(vport.is_some()).vport_number(vport.unwrap_or(0).into());
        let out: CreateFlowGroupOut = bed.command(0, Opcode::CreateFlowGroup, &input).expect("a group");
        made.push(out.group_id());
        first += len;
    }
    (table, made)
}

pub struct Rule<'a> {
    pub kind: u8,
    pub vport: Option<u8>,
    pub table: u32,
    pub group: u32,
    pub index: u32,
    pub value: MatchParam,
    pub action: u16,
    pub to: &'a [u16],
    pub counter: Option<u32>,
    /// Mask of changed fields for an existing entry; 0 creates one.
    pub changes: u8,
    /// Tags to push, from the innermost: EtherType and TCI.
    pub push: [(u16, u16); 2],
}

pub fn rule(bed: &mut Bed, rule: &Rule<'_>) -> Result<(), CommandError> {
    let mut c = FlowContext::zeroed();
    c.set().group_id(rule.group).action(rule.action).match_value(rule.value);
    c.set().destination_list_size(rule.to.len() as u32).flow_counter_list_size(rule.counter.is_some().into());
    let [one, two] = rule.push.map(|(kind, tci)| {
        FlowVlan::with(|s| s.ethtype(kind).prio((tci >> 13) as u8).cfi(tci & 1 << 12 != 0).vid(tci & 0xfff))
    });
    c.set().push_vlan(one).push_vlan_2(two);
    let mut input = SetFteIn::zeroed();
    input
        .set()
        .modify_enable_mask(rule.changes)
        .table_type(rule.kind)
        .table_id(rule.table)
        .flow_index(rule.index)
        .flow_context(c);
    input.set().other_vport(rule.vport.is_some()).vport_number(rule.vport.unwrap_or(0).into());
    let mut list = Vec::new();
    for vport in rule.to {
        let d = FlowDestination::with(|s| s.destination_type(0).destination_id((*vport).into()));
        list.extend_from_slice(d.as_bytes());
    }
    if let Some(counter) = rule.counter {
        list.extend_from_slice(FlowCounterId::with(|s| s.flow_counter_id(counter)).as_bytes());
    }
    let op_mod = u16::from(rule.changes != 0);
    bed.command_with(0, Opcode::SetFlowTableEntry, op_mod, &input, &list, CmdOut::SIZE).map(drop)
}

/// An entry of the forwarding database.
pub fn forward((table, group): (u32, u32), index: u32, value: MatchParam, to: &[u16]) -> Rule<'_> {
    let (kind, vport, action, counter, changes, push) = (FDB, None, FORWARD, None, 0, [(0, 0); 2]);
    Rule { kind, vport, table, group, index, value, action, to, counter, changes, push }
}

pub fn dmac(mac: [u8; 6]) -> MatchParam {
    let headers = MatchHeaders::with(|s| {
        s.dmac_47_16(u32::from_be_bytes(prefix(&mac))).dmac_15_0(u16::from_be_bytes([mac[4], mac[5]]))
    });
    outer(headers)
}

pub fn outer(headers: MatchHeaders) -> MatchParam {
    MatchParam::with(|s| s.outer_headers(headers))
}

pub fn source(port: u16) -> MatchParam {
    let misc = MatchMisc::with(|s| s.source_port(port));
    MatchParam::with(|s| s.misc_parameters(misc))
}

/// The forwarding database of legacy mode: addresses, all multicast, and everything from the uplink.
pub struct Fdb {
    pub table: u32,
    pub groups: Vec<u32>,
    pub next: u32,
}

impl Fdb {
    pub fn new(bed: &mut Bed) -> Self {
        bed.function(0);
        let groups =
            [(OUTER, dmac([0xff; 6]), 32), (OUTER, dmac([1, 0, 0, 0, 0, 0]), 1), (MISC, source(0xffff), 1)];
        let (table, groups) = tables(bed, FDB, None, (1, 8), &groups);
        set_root(bed, FDB, None, table);
        Self { table, groups, next: 0 }
    }

    pub fn add(&mut self, bed: &mut Bed, mac: [u8; 6], to: &[u16]) {
        let (table, group, index) = (self.table, self.groups[0], self.next);
        self.next += 1;
        rule(bed, &forward((table, group), index, dmac(mac), to)).unwrap();
    }

    /// Makes a trusted VF promiscuous.
    pub fn promiscuous(&mut self, bed: &mut Bed, vport: u16) {
        let (table, group, value) = (self.table, self.groups[2], source(UPLINK));
        let (index, to) = (33, &[vport][..]);
        rule(bed, &forward((table, group), index, value, to)).unwrap();
    }
}

pub fn send(bed: &mut Bed, nic: &mut Nic, dst: [u8; 6], src: [u8; 6]) -> Vec<u8> {
    let sent = frame(dst, src, 0x88b5, &[1; 46]);
    bed.send_frame(nic, &sent, Send::default());
    sent
}

/// `modify_esw_vport_cvlan`.
pub fn set_vlan(bed: &mut Bed, vf: u8, vlan: u16, qos: u8) {
    let on = vlan != 0 || qos != 0;
    let mut c = EswVportContext::zeroed();
    c.set().vport_cvlan_strip(on).vport_cvlan_insert(on.into()).cvlan_id(vlan).cvlan_pcp(qos);
    let fields = EswVportFields::with(|s| s.vport_cvlan_strip(true).vport_cvlan_insert(true));
    let mut input = ModifyEswVportContextIn::zeroed();
    input.set().other_vport(true).vport_number(vf.into()).field_select(fields).esw_vport_context(c);
    let _: CmdOut = bed.command(0, Opcode::ModifyEswVportContext, &input).unwrap();
}

pub fn counted(bed: &mut Bed, id: u32) -> u64 {
    let input = QueryFlowCounterIn::with(|s| s.flow_counter_id(id));
    let out = bed.command_with(0, Opcode::QueryFlowCounter, 0, &input, &[], 0x20).unwrap();
    TrafficCounter::read(&out[0x10..]).packets()
}

/// Returns two connected QPs on VFs 1 and 2, with another MAC for VF 2.
pub fn pair_by(bed: &mut Bed, mac: [u8; 6]) -> (Qp, Qp) {
    let (a, b) = (bed.qp(1), bed.qp(2));
    let base = Path { timeout: 14, retry_count: 1, ..Path::default() };
    let to_b = bed.path_to(b, base);
    let to_a = bed.path_to(a, base.back());
    bed.ready(a, &Path { dmac: mac, ..to_b });
    bed.ready(b, &to_a);
    (a, b)
}

/// Returns true if a write from the first to the second QP arrives.
pub fn writes(bed: &mut Bed, (a, b): (Qp, Qp)) -> bool {
    let (from, to) = (bed.mr(a.fid, 3000, Access::LOCAL), bed.mr(b.fid, 3000, Access::ALL));
    let data = bed.pattern(from, 0x21);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.advance(10 * ironverbs_tests::bed::S);
    let done = bed.one(a.send_cq).is_ok();
    assert_eq!(done, bed.bytes(to) == data);
    done
}

pub fn general(bed: &mut Bed, by: u8, other: Option<u16>) -> Result<HcaCap, CommandError> {
    let input = QueryHcaCapIn::with(|s| s.other_function(other.is_some()).function_id(other.unwrap_or(0)));
    let op_mod = CapType::General.raw() as u16;
    let out = bed.command_with(by, Opcode::QueryHcaCap, op_mod << 1, &input, &[], 0x1010)?;
    Ok(HcaCap::read(&out[0x10..]))
}
