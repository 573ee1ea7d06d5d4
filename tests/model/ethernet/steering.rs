//! Flow tables.

use super::packets::*;
use devmodel::state::Counters;
use hwspec::{
    cmd::{CmdOut, Opcode, Status, flow::*, tir::*, uctx::*},
    context::{
        flow::{FlowContext, FlowDestination, FlowTableContext, MatchHeaders},
        tir::TirContext,
        vport::TrafficCounter,
    },
    cqe::eth,
    layout::{Layout, prefix},
};
use ironverbs_tests::bed::{Bed, CommandError, Nic, TO_TABLE, TO_TIR};

fn dmac(mac: [u8; 6]) -> MatchHeaders {
    let mut m = MatchHeaders::zeroed();
    m.set().dmac_47_16(u32::from_be_bytes(prefix(&mac))).dmac_15_0(u16::from_be_bytes([mac[4], mac[5]]));
    m
}

fn ethertype(value: u16) -> MatchHeaders {
    MatchHeaders::with(|s| s.ethertype(value))
}

/// Two queues, and a TIR for each.
fn two() -> (Bed, Nic, u32, u32) {
    let (mut bed, nic) = Bed::with_nic(1, 2);
    let (a, b) = (bed.direct_tir(&nic, 0), bed.direct_tir(&nic, 1));
    (bed, nic, a, b)
}

fn where_to(bed: &mut Bed, nic: &mut Nic, frame: &[u8]) -> Vec<usize> {
    bed.inject(frame);
    (0..nic.rx.len()).filter(|q| bed.received(nic, *q).is_some()).collect()
}

#[test]
fn without_a_root_nothing_is_received() {
    let (mut bed, mut nic, tir, _) = two();
    let f = frame(mac(1), mac(2), 0x0800, &[0; 50]);
    assert!(where_to(&mut bed, &mut nic, &f).is_empty());
    bed.steer_all(&nic, tir);
    assert_eq!(where_to(&mut bed, &mut nic, &f), [0]);
    bed.flow_root(1, None).expect("no root");
    assert!(where_to(&mut bed, &mut nic, &f).is_empty());
    assert_eq!(bed.counter(1, Counters::EthRxUnmatched), 2);
}

/// DPDK names domain 0 for its drop queue, which no command allocates.
#[test]
fn an_interface_may_be_in_no_transport_domain() {
    let (mut bed, mut nic) = Bed::with_nic(0, 1);
    assert_ne!(nic.td, 0);
    let rqn = nic.rx[0].rqn;
    let create = |bed: &mut Bed, domain| {
        let context = TirContext::with(|s| s.transport_domain(domain).inline_rqn(rqn));
        let input = CreateTirIn::with(|s| s.ctx(context));
        bed.command::<_, CreateTirOut>(0, Opcode::CreateTir, &input).map(|out| out.tirn())
    };
    assert!(create(&mut bed, nic.td + 1).is_err());
    let tir = create(&mut bed, 0).expect("a TIR");
    bed.steer_all(&nic, tir);
    assert_eq!(where_to(&mut bed, &mut nic, &frame(mac(0), mac(2), 0x0800, &[0; 50])), [0]);
}

#[test]
fn an_address_no_entry_names_is_not_received() {
    let (mut bed, mut nic, tir, _) = two();
    let table = bed.flow_table(1, 1, None).unwrap();
    let group = bed.flow_group(1, table, 0..=3, dmac(BROADCAST)).unwrap();
    let multicast = bed.flow_group(1, table, 4..=4, dmac([1, 0, 0, 0, 0, 0])).unwrap();
    bed.flow_entry(1, (table, group), 0, dmac(mac(1)), &[(TO_TIR, tir)], &[]).unwrap();
    bed.flow_entry(1, (table, group), 2, dmac(BROADCAST), &[(TO_TIR, tir)], &[]).unwrap();
    bed.flow_root(1, Some(table)).unwrap();
    let to = |dst| frame(dst, mac(2), 0x0800, &[0; 50]);
    assert_eq!(where_to(&mut bed, &mut nic, &to(mac(1))), [0]);
    assert_eq!(where_to(&mut bed, &mut nic, &to(BROADCAST)), [0]);
    let group_address = [0x33, 0x33, 0, 0, 0, 1];
    assert!(where_to(&mut bed, &mut nic, &to(group_address)).is_empty());
    // All multicast: a single bit is compared.
    bed.flow_entry(1, (table, multicast), 4, dmac([1, 0, 0, 0, 0, 0]), &[(TO_TIR, tir)], &[]).unwrap();
    assert_eq!(where_to(&mut bed, &mut nic, &to(group_address)), [0]);
    // A deleted entry matches no more.
    bed.delete_flow_entry(1, table, 0).unwrap();
    assert!(where_to(&mut bed, &mut nic, &to(mac(1))).is_empty());
    assert_eq!(where_to(&mut bed, &mut nic, &to(BROADCAST)), [0], "the others do");
}

#[test]
fn the_entry_with_the_lowest_index_wins_whatever_came_first() {
    let (mut bed, mut nic, a, b) = two();
    let table = bed.flow_table(1, 1, None).unwrap();
    let narrow = bed.flow_group(1, table, 0..=7, ethertype(0xffff)).unwrap();
    let wide = bed.flow_group(1, table, 8..=8, MatchHeaders::zeroed()).unwrap();
    bed.flow_entry(1, (table, wide), 8, MatchHeaders::zeroed(), &[(TO_TIR, b)], &[]).unwrap();
    for index in [5, 1, 3] {
        let value = ethertype(0x9000 + index as u16);
        bed.flow_entry(1, (table, narrow), index, value, &[(TO_TIR, a)], &[]).unwrap();
    }
    bed.flow_root(1, Some(table)).unwrap();
    for (kind, queue) in [(0x9001, 0), (0x9003, 0), (0x9005, 0), (0x9002, 1), (0x0800, 1)] {
        let f = frame(mac(1), mac(2), kind, &[0; 50]);
        assert_eq!(where_to(&mut bed, &mut nic, &f), [queue], "{kind:#x}");
    }
}

#[test]
fn tables_lead_to_tables_by_entry_and_by_miss() {
    let (mut bed, mut nic, a, b) = two();
    let last = bed.flow_table(1, 3, None).unwrap();
    let second = bed.flow_table(1, 2, Some(last)).unwrap();
    let first = bed.flow_table(1, 1, None).unwrap();
    let all = |bed: &mut Bed, table| bed.flow_group(1, table, 0..=0, MatchHeaders::zeroed()).unwrap();
    let by_type = bed.flow_group(1, second, 0..=3, ethertype(0xffff)).unwrap();
    let (g1, g3) = (all(&mut bed, first), all(&mut bed, last));
    bed.flow_entry(1, (first, g1), 0, MatchHeaders::zeroed(), &[(TO_TABLE, second)], &[]).unwrap();
    bed.flow_entry(1, (second, by_type), 0, ethertype(0x0800), &[(TO_TIR, a)], &[]).unwrap();
    bed.flow_entry(1, (second, by_type), 1, ethertype(0x0806), &[], &[]).unwrap();
    bed.flow_entry(1, (last, g3), 0, MatchHeaders::zeroed(), &[(TO_TIR, b)], &[]).unwrap();
    bed.flow_root(1, Some(first)).unwrap();
    for (kind, queues) in [(0x0800, vec![0]), (0x0806, vec![]), (0x86dd, vec![1])] {
        let f = frame(mac(1), mac(2), kind, &[0; 50]);
        assert_eq!(where_to(&mut bed, &mut nic, &f), queues, "{kind:#x}");
    }
    // A table cannot forward back to an earlier one.
    let up = bed.flow_entry(1, (last, g3), 0, MatchHeaders::zeroed(), &[(TO_TABLE, first)], &[]);
    assert!(matches!(up, Err(CommandError::Refused(Status::BadParam, _))), "{up:?}");
}

#[test]
fn packets_are_matched_by_vlan_tag_and_protocol() {
    let (mut bed, mut nic, a, b) = two();
    let table = bed.flow_table(1, 1, None).unwrap();
    let (mut mask, mut value) = (MatchHeaders::zeroed(), MatchHeaders::zeroed());
    mask.set().cvlan_tag(true).first_vid(0xfff);
    value.set().cvlan_tag(true).first_vid(5);
    let vlan = bed.flow_group(1, table, 0..=0, mask).unwrap();
    bed.flow_entry(1, (table, vlan), 0, value, &[(TO_TIR, a)], &[]).unwrap();
    let (mut mask, mut value) = (MatchHeaders::zeroed(), MatchHeaders::zeroed());
    mask.set().ip_version(0xf).ip_protocol(0xff).udp_dport(0xffff);
    value.set().ip_version(4).ip_protocol(17).udp_dport(53);
    let udp = bed.flow_group(1, table, 1..=1, mask).unwrap();
    bed.flow_entry(1, (table, udp), 1, value, &[(TO_TIR, b)], &[]).unwrap();
    bed.flow_root(1, Some(table)).unwrap();
    let to_port = |port| frame(mac(1), mac(2), 0x0800, &udp4(([1, 2, 3, 4], 9), ([4, 3, 2, 1], port), b"q"));
    assert_eq!(where_to(&mut bed, &mut nic, &tagged(&to_port(99), 0xe005)), [0]);
    assert_eq!(where_to(&mut bed, &mut nic, &tagged(&to_port(53), 6)), [1]);
    assert_eq!(where_to(&mut bed, &mut nic, &to_port(53)), [1]);
    assert!(where_to(&mut bed, &mut nic, &to_port(54)).is_empty());
}

#[test]
fn a_counter_counts_what_matches_and_several_destinations_all_get_it() {
    let (mut bed, mut nic, a, b) = two();
    let counter: AllocFlowCounterOut =
        bed.command(1, Opcode::AllocFlowCounter, &AllocFlowCounterIn::zeroed()).unwrap();
    let counter = counter.flow_counter_id();
    let table = bed.flow_table(1, 1, None).unwrap();
    let group = bed.flow_group(1, table, 0..=0, MatchHeaders::zeroed()).unwrap();
    let to = [(TO_TIR, a), (TO_TIR, b)];
    bed.flow_entry(1, (table, group), 0, MatchHeaders::zeroed(), &to, &[counter]).unwrap();
    bed.flow_root(1, Some(table)).unwrap();
    let f = frame(mac(1), mac(2), 0x0800, &[0; 86]);
    assert_eq!(where_to(&mut bed, &mut nic, &f), [0, 1]);
    assert_eq!(where_to(&mut bed, &mut nic, &f), [0, 1]);
    let mut input = QueryFlowCounterIn::zeroed();
    input.set().flow_counter_id(counter);
    let out = bed.command_with(1, Opcode::QueryFlowCounter, 0, &input, &[], 0x20).unwrap();
    let count = TrafficCounter::read(&out[0x10..]);
    assert_eq!((count.packets(), count.octets()), (2, 200));
    // A range that contains unused numbers.
    input.set().flow_counter_id(0).num_of_counters(4);
    let out = bed.command_with(1, Opcode::QueryFlowCounter, 0, &input, &[], 0x50).unwrap();
    let counts: Vec<u64> = out[0x10..].chunks(0x10).map(|c| TrafficCounter::read(c).packets()).collect();
    assert_eq!(counts, (0..4).map(|i| if i == counter { 2 } else { 0 }).collect::<Vec<_>>());
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let (mut bed, nic, tir, _) = two();
    let (table, group) = bed.steer_all(&nic, tir);
    let destroy = DestroyFlowTableIn::with(|s| s.table_id(table));
    let busy = |r: Result<CmdOut, CommandError>| {
        assert!(matches!(r, Err(CommandError::Refused(Status::BadResState, _))), "{r:?}");
    };
    busy(bed.command(1, Opcode::DestroyFlowTable, &destroy));
    bed.delete_flow_entry(1, table, 0).unwrap();
    busy(bed.command(1, Opcode::DestroyFlowTable, &destroy));
    let input = DestroyFlowGroupIn::with(|s| s.table_id(table).group_id(group));
    let _: CmdOut = bed.command(1, Opcode::DestroyFlowGroup, &input).unwrap();
    let _: CmdOut = bed.command(1, Opcode::DestroyFlowTable, &destroy).unwrap();
}

#[test]
fn overlapping_groups_foreign_types_and_other_fields_are_refused() {
    let (mut bed, _, tir, _) = two();
    let table = bed.flow_table(1, 1, None).unwrap();
    let group = bed.flow_group(1, table, 2..=5, MatchHeaders::zeroed()).unwrap();
    for (start, end) in [(0, 2), (5, 6), (3, 4), (0, 15), (15, 16), (6, 5)] {
        assert!(bed.flow_group(1, table, start..=end, MatchHeaders::zeroed()).is_err(), "{start} to {end}");
    }
    let entry = |bed: &mut Bed, index| {
        bed.flow_entry(1, (table, group), index, MatchHeaders::zeroed(), &[(TO_TIR, tir)], &[])
    };
    assert!(entry(&mut bed, 1).is_err(), "not of the group");
    assert!(entry(&mut bed, 2).is_ok());
    assert!(entry(&mut bed, 2).is_err(), "taken");
    let mut misc = CreateFlowGroupIn::zeroed();
    misc.set().table_id(table).start_flow_index(8).end_flow_index(8).match_criteria_enable(2);
    assert!(bed.command::<_, CreateFlowGroupOut>(1, Opcode::CreateFlowGroup, &misc).is_err());
    let egress = CreateFlowTableIn::with(|s| s.table_type(1));
    assert!(bed.command::<_, CreateFlowTableOut>(1, Opcode::CreateFlowTable, &egress).is_err());
}

#[test]
fn tables_that_lead_in_circles_drop_their_packets() {
    let (mut bed, mut nic, tir, _) = two();
    let first = bed.flow_table(1, 1, None).unwrap();
    let second = bed.flow_table(1, 2, None).unwrap();
    let all = MatchHeaders::zeroed();
    let g1 = bed.flow_group(1, first, 0..=0, all).unwrap();
    let g2 = bed.flow_group(1, second, 0..=0, all).unwrap();
    bed.flow_entry(1, (first, g1), 0, all, &[(TO_TABLE, second)], &[]).unwrap();
    bed.flow_root(1, Some(first)).unwrap();
    let c = FlowContext::with(|s| s.group_id(g2).action(4).destination_list_size(1));
    let back = SetFteIn::with(|s| s.table_id(second).ignore_flow_level(true).flow_context(c));
    let to = FlowDestination::with(|s| s.destination_type(TO_TABLE).destination_id(first));
    bed.command_with(1, Opcode::SetFlowTableEntry, 0, &back, to.as_bytes(), CmdOut::SIZE).unwrap();
    let f = frame(mac(1), mac(2), 0x0800, &[0; 50]);
    assert!(where_to(&mut bed, &mut nic, &f).is_empty());
    bed.delete_flow_entry(1, second, 0).unwrap();
    bed.flow_entry(1, (second, g2), 0, all, &[(TO_TIR, tir)], &[]).unwrap();
    assert_eq!(where_to(&mut bed, &mut nic, &f), [0]);
}

#[test]
fn user_contexts_have_entries_in_tables_their_driver_shares_and_in_no_other() {
    /// Resources of the driver that all user contexts may use.
    const ALL: u16 = 0xffff;
    /// Action: drop the packet.
    const DROP: u16 = 1 << 1;
    const MODIFY: u16 = 1;
    /// Bit of `modify_enable_mask`: the action is changed.
    const ACTION: u8 = 1;
    let (mut bed, ..) = two();
    let out: CreateUctxOut = bed.command(1, Opcode::CreateUctx, &CreateUctxIn::zeroed()).unwrap();
    let uid = out.uid();
    let out: CreateUctxOut = bed.command(1, Opcode::CreateUctx, &CreateUctxIn::zeroed()).unwrap();
    let other = out.uid();
    // Flow table commands have no field for the user context, but it is passed in the usual place all the same.
    let of = |input: &[u8], uid: u16| {
        let mut bytes = input.to_vec();
        bytes[2..4].copy_from_slice(&uid.to_be_bytes());
        bytes
    };
    let mut table = CreateFlowTableIn::zeroed();
    table.set().flow_table_context(FlowTableContext::with(|s| s.log_size(4)));
    for (owner, good) in [(0, false), (ALL, true)] {
        let mut input = of(table.as_bytes(), owner);
        input[..2].copy_from_slice(&Opcode::CreateFlowTable.raw().to_be_bytes());
        let out = bed.raw_command(1, &input, CreateFlowTableOut::SIZE).unwrap();
        assert_eq!(out[0], 0, "a table of {owner:#x}");
        let id = CreateFlowTableOut::read(&out).table_id();
        let group = CreateFlowGroupIn::with(|s| s.table_id(id));
        let mut input = of(group.as_bytes(), uid);
        input[..2].copy_from_slice(&Opcode::CreateFlowGroup.raw().to_be_bytes());
        let made = bed.raw_command(1, &input, CreateFlowGroupOut::SIZE);
        assert_eq!(made.is_ok(), good, "a group in a table of {owner:#x}: {made:?}");
        let Ok(made) = made else { continue };
        let mut context = FlowContext::zeroed();
        context.set().group_id(CreateFlowGroupOut::read(&made).group_id()).action(DROP);
        let mut entry = SetFteIn::zeroed();
        entry.set().opcode(Opcode::SetFlowTableEntry).table_id(id).flow_context(context);
        bed.raw_command(1, &of(entry.as_bytes(), uid), CmdOut::SIZE).expect("an entry");
        entry.set().op_mod(MODIFY).modify_enable_mask(ACTION);
        let theirs = bed.raw_command(1, &of(entry.as_bytes(), other), CmdOut::SIZE);
        assert!(theirs.is_err(), "another's entry was changed");
        bed.raw_command(1, &of(entry.as_bytes(), uid), CmdOut::SIZE).expect("one's own entry");
    }
}

#[test]
fn a_packet_that_claims_more_than_there_is_is_steered_and_not_good() {
    let (mut bed, mut nic, tir, _) = two();
    let version = |value: u8| MatchHeaders::with(|s| s.ip_version(value));
    let table = bed.flow_table(1, 1, None).unwrap();
    let group = bed.flow_group(1, table, 0..=1, version(15)).unwrap();
    bed.flow_entry(1, (table, group), 0, version(4), &[(TO_TIR, tir)], &[]).unwrap();
    bed.flow_entry(1, (table, group), 1, version(6), &[(TO_TIR, tir)], &[]).unwrap();
    bed.flow_root(1, Some(table)).unwrap();
    let v4 = udp4(([10, 0, 0, 1], 4000), ([10, 0, 0, 2], 5000), &[1; 50]);
    let v6 = ipv6([1; 16], [2; 16], 17, &v4[20..]);
    // Offset of the length: of the whole packet, or of the part after the header.
    for (ethertype, packet, at) in [(0x0800, v4, 2), (0x86dd, v6, 4)] {
        let mut f = frame(mac(1), mac(2), ethertype, &packet);
        f[14 + at] = 4;
        bed.inject(&f);
        let (cqe, got) = bed.received(&mut nic, 0).expect("steered");
        assert_eq!((cqe.hds_ip_ext(), got), (eth::L2_OK, f));
    }
}
