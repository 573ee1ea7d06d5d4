//! The e-switch as configured by the stock driver of a PF, and its effect on frames.

use super::{manager::*, packets::*};
use devmodel::{Config, strict::Strict};
use hwspec::{
    cmd::{CmdOut, Opcode, adapter::*, eswitch::*, flow::*, vport::*},
    context::{caps::QosCap, eswitch::*, flow::*, vport::*},
    eqe::{EventType, VportEvent},
    layout::Layout,
};
use ironverbs_tests::bed::{Bed, FORWARD, Send};

#[test]
fn the_pf_manages_the_switch_and_vfs_do_not() {
    let mut bed = Bed::cx5().with_function(1);
    let pf = general(&mut bed, 0, None).unwrap();
    assert!(pf.vport_group_manager() && pf.eswitch_manager() && pf.nic_vport_change_event() && pf.qos());
    assert_eq!(pf.log_max_l2_table(), 10);
    for vf in [general(&mut bed, 1, None).unwrap(), general(&mut bed, 0, Some(1)).unwrap()] {
        assert!(!vf.vport_group_manager() && !vf.eswitch_manager() && !vf.qos());
        assert_eq!((vf.vhca_id(), vf.log_max_l2_table()), (1, 0));
    }
    assert!(general(&mut bed, 1, Some(2)).is_err() && general(&mut bed, 0, Some(9)).is_err());
    let c = NicVportContext::with(|s| s.permanent_address(word(GIVEN)));
    assert!(modify(&mut bed, 1, Some(2), PERMANENT, c, &[]).is_err());
    assert!(modify(&mut bed, 1, None, NODE_GUID, c, &[]).is_err());
    let input = QueryNicVportContextIn::with(|s| s.other_vport(true).vport_number(2));
    assert!(bed.command_with(1, Opcode::QueryNicVportContext, 0, &input, &[], 0x110).is_err());
    let l2 = bed.command::<_, CmdOut>(1, Opcode::SetL2TableEntry, &SetL2TableEntryIn::zeroed());
    let esw = bed.command::<_, QueryEswVportContextOut>(
        1,
        Opcode::QueryEswVportContext,
        &QueryEswVportContextIn::zeroed(),
    );
    let element = bed.command::<_, CreateSchedulingElementOut>(
        1,
        Opcode::CreateSchedulingElement,
        &CreateSchedulingElementIn::zeroed(),
    );
    assert!(l2.is_err() && esw.is_err() && element.is_err());
    let input = CreateFlowTableIn::with(|s| s.table_type(FDB));
    assert!(bed.command::<_, CreateFlowTableOut>(1, Opcode::CreateFlowTable, &input).is_err());
}

#[test]
fn an_administrators_address_is_the_vfs_also_behind_its_reset() {
    let mut bed = Bed::cx5().with_function(1);
    set_mac(&mut bed, 1, GIVEN);
    for _ in 0..2 {
        for c in [context(&mut bed, 1, None).0, context(&mut bed, 0, Some(1)).0] {
            assert_eq!((mac_in(&c), c.node_guid()), (GIVEN, 0x1122_3344_5566_7701));
        }
        let (mut a, mut b) = (bed.open_nic(2), bed.open_nic(1));
        let sent = send(&mut bed, &mut a, GIVEN, mac(2));
        assert_eq!(bed.all_received(&mut b), [sent]);
        send(&mut bed, &mut a, mac(1), mac(2));
        assert!(bed.received(&mut b, 0).is_none(), "it is not its address any more");
        bed.reset(1);
        bed.function(1);
    }
    set_mac(&mut bed, 1, [0; 6]);
    bed.reset(1);
    bed.function(1);
    assert_eq!(mac_in(&context(&mut bed, 1, None).0), mac(1));
}

#[test]
fn rdma_goes_to_the_address_a_function_has() {
    for watched in [true, false] {
        let mut bed = Bed::cx5();
        if !watched {
            bed.unwatched();
        }
        let ends = pair_by(&mut bed, GIVEN);
        assert!(!writes(&mut bed, ends), "nobody has it");
        set_mac(&mut bed, 2, GIVEN);
        let ends = pair_by(&mut bed, GIVEN);
        assert!(writes(&mut bed, ends));
        let ends = pair_by(&mut bed, mac(2));
        assert!(!writes(&mut bed, ends), "VF 2 has another");
        listen(&mut bed, 2, &[mac(2)]);
        let ends = pair_by(&mut bed, mac(2));
        assert!(writes(&mut bed, ends), "but for its list");
    }
}

#[test]
fn the_forwarding_database_says_who_gets_a_frame() {
    let (mut bed, [mut a, mut b, mut c]) = Bed::with_open_nics([1, 2, 3]);
    let mut fdb = Fdb::new(&mut bed);
    fdb.add(&mut bed, mac(2), &[2]);
    fdb.add(&mut bed, BROADCAST, &[UPLINK, 0, 1, 2]);
    let sent = send(&mut bed, &mut a, mac(2), mac(1));
    assert_eq!(bed.all_received(&mut b), [sent]);
    send(&mut bed, &mut a, mac(3), mac(1));
    assert!(bed.received(&mut c, 0).is_none(), "no entry leads to VF 3");
    let sent = send(&mut bed, &mut b, BROADCAST, mac(2));
    let came: Vec<_> = bed.all_received(&mut a);
    assert_eq!(came, std::slice::from_ref(&sent));
    assert!(bed.received(&mut c, 0).is_none());
    assert!(bed.received(&mut b, 0).is_none(), "it does not come back to its sender");
    // Only the manager can grant promiscuity.
    modify(&mut bed, 3, None, PROMISC, NicVportContext::with(|s| s.promisc_all(true)), &[]).unwrap();
    let stray = frame(GIVEN, mac(9), 0x88b5, &[1; 46]);
    bed.inject(&stray);
    assert!(bed.received(&mut c, 0).is_none(), "not trusted");
    fdb.promiscuous(&mut bed, 3);
    bed.inject(&stray);
    assert_eq!(bed.all_received(&mut c), [stray]);
}

#[test]
fn entries_of_the_database_push_and_pop_tags() {
    let (mut bed, [mut a, mut b, mut c]) = Bed::with_open_nics([1, 2, 3]);
    let fdb = Fdb::new(&mut bed);
    let place = (fdb.table, fdb.groups[0]);
    let mut entry = |index, to: u8, action, push| {
        let ports = [u16::from(to)];
        let one = Rule { action: FORWARD | action, push, ..forward(place, index, dmac(mac(to)), &ports) };
        rule(&mut bed, &one)
    };
    let (inner, outer) = ((0x8100, 0x6005), (0x88a8, 9));
    entry(0, 2, PUSH, [inner, (0, 0)]).unwrap();
    entry(1, 3, PUSH | PUSH_2, [inner, outer]).unwrap();
    entry(2, 1, POP, [(0, 0); 2]).unwrap();
    // An EtherType that is not a VLAN tag, and a second tag without a first.
    for (action, push) in [(PUSH, [(0x0800, 1), (0, 0)]), (PUSH_2, [inner, outer]), (POP_2, [(0, 0); 2])] {
        assert!(entry(3, 4, action, push).is_err());
    }
    let sent = send(&mut bed, &mut a, mac(2), mac(1));
    let (cqe, bytes) = bed.received(&mut b, 0).expect("the frame");
    assert!(bytes == sent && cqe.cv() && cqe.vlan_info() == 0x6005);
    let sent = send(&mut bed, &mut a, mac(3), mac(1));
    let twice = [&sent[..12], &[0x88, 0xa8, 0, 9], &tagged(&sent, 0x6005)[12..]].concat();
    assert_eq!(bed.all_received(&mut c), [twice]);
    let sent = frame(mac(1), mac(2), 0x88b5, &[1; 46]);
    bed.send_frame(&mut b, &sent, Send { vlan: Some(7), ..Send::default() });
    bed.send_frame(&mut b, &sent, Send::default());
    assert_eq!(bed.all_received(&mut a), [sent.clone(), sent], "where there is no tag none comes off");
    // The entry can be queried, and pushes no more tags when its action changes.
    let input = QueryFteIn::with(|s| s.table_type(FDB).table_id(fdb.table).flow_index(1));
    let out = bed.command_with(0, Opcode::QueryFlowTableEntry, 0, &input, &[], 0x348).unwrap();
    let kept = QueryFteOut::read(&out).flow_context();
    assert_eq!((kept.action(), kept.push_vlan().vid(), kept.push_vlan_2().ethtype()), (0x904, 5, 0x88a8));
    rule(&mut bed, &Rule { changes: 1, ..forward(place, 1, dmac(mac(3)), &[3]) }).unwrap();
    let sent = send(&mut bed, &mut a, mac(3), mac(1));
    assert_eq!(bed.all_received(&mut c), [sent]);
    // NIC tables do not support it, nor do vport tables on this card.
    let pf = bed.open_nic(0);
    for kind in [0, INGRESS] {
        let vport = (kind == INGRESS).then_some(1);
        let (table, groups) = tables(&mut bed, kind, vport, (20, 1), &[(OUTER, dmac([0xff; 6]), 1)]);
        let place = (table, groups[0]);
        let one = Rule { kind, vport, action: ALLOW | POP, ..forward(place, 0, dmac(mac(1)), &[]) };
        assert!(rule(&mut bed, &one).is_err(), "{kind}");
        rule(&mut bed, &Rule { action: ALLOW, ..one }).unwrap();
    }
    drop(pf);
}

#[test]
fn the_database_ends_with_its_table() {
    let (mut bed, [mut a, mut b]) = Bed::with_open_nics([1, 2]);
    let fdb = Fdb::new(&mut bed);
    send(&mut bed, &mut a, mac(2), mac(1));
    assert!(bed.received(&mut b, 0).is_none());
    for group in &fdb.groups {
        let input = DestroyFlowGroupIn::with(|s| s.table_type(FDB).table_id(fdb.table).group_id(*group));
        let _: CmdOut = bed.command(0, Opcode::DestroyFlowGroup, &input).unwrap();
    }
    let input = DestroyFlowTableIn::with(|s| s.table_type(FDB).table_id(fdb.table));
    let _: CmdOut = bed.command(0, Opcode::DestroyFlowTable, &input).unwrap();
    let sent = send(&mut bed, &mut a, mac(2), mac(1));
    assert_eq!(bed.all_received(&mut b), [sent]);
}

#[test]
fn an_entry_leads_to_more_vports_than_one_has_destinations() {
    let mut bed = Bed::cx5();
    let mut fdb = Fdb::new(&mut bed);
    fdb.add(&mut bed, BROADCAST, &[UPLINK, 0, 1, 2, 3]);
    let input = QueryFteIn::with(|s| s.table_type(FDB).table_id(fdb.table).flow_index(0));
    let out = bed.command_with(0, Opcode::QueryFlowTableEntry, 0, &input, &[], 0x340 + 5 * 8).unwrap();
    assert_eq!(QueryFteOut::read(&out).flow_context().destination_list_size(), 5);
    let vports: Vec<u32> =
        out[0x340..].chunks(8).map(|d| FlowDestination::read(d).destination_id()).collect();
    assert_eq!(vports, [0, 1, 2, 3, 0xffff]);
}

#[test]
fn the_manager_hears_of_a_context_that_changed_once_for_each_time_it_asks() {
    let mut bed = Bed::cx5().with_function(1);
    let arm = |bed: &mut Bed| {
        let mut c = NicVportContext::zeroed();
        c.set().arm_change_event(true).event_on_uc_address_change(true).event_on_promisc_change(true);
        modify(bed, 0, Some(1), CHANGE_EVENT, c, &[]).unwrap();
    };
    let told = |bed: &mut Bed| -> Vec<u16> {
        bed.run();
        let all = bed.events(0);
        let changes = all.iter().filter(|e| e.event_type() == EventType::NicVportChange);
        changes.map(|e| e.data::<VportEvent>().vport_num()).collect()
    };
    told(&mut bed);
    listen(&mut bed, 1, &[mac(1)]);
    assert!(told(&mut bed).is_empty(), "nobody asked");
    arm(&mut bed);
    listen(&mut bed, 1, &[mac(1), GIVEN]);
    assert_eq!(told(&mut bed), [1]);
    assert_eq!(context(&mut bed, 0, Some(1)).1, [mac(1), GIVEN]);
    listen(&mut bed, 1, &[mac(1)]);
    assert!(told(&mut bed).is_empty(), "not asked again");
    arm(&mut bed);
    assert_eq!(told(&mut bed), [1], "what happened meanwhile");
    arm(&mut bed);
    let mut c = NicVportContext::zeroed();
    c.set().allowed_list_type(1);
    modify(&mut bed, 1, None, LIST, c, &[]).unwrap();
    assert!(told(&mut bed).is_empty(), "multicast was not asked for");
    c.set().promisc_all(true);
    modify(&mut bed, 1, None, PROMISC, c, &[]).unwrap();
    assert_eq!(told(&mut bed), [1]);
}

#[test]
fn scheduling_elements_and_addresses_are_kept() {
    let mut bed = Bed::cx5().with_function(0);
    let input = QueryHcaCapIn::with(|s| s.function_id(0));
    let out = bed.command_with(0, Opcode::QueryHcaCap, 0xc << 1 | 1, &input, &[], 0x1010).unwrap();
    let qos = QosCap::read(&out[0x10..]);
    assert!(qos.esw_scheduling() && qos.esw_rate_limit() && qos.esw_bw_share());
    let create = |bed: &mut Bed, c: SchedulingContext| {
        let input = CreateSchedulingElementIn::with(|s| s.scheduling_hierarchy(2).scheduling_context(c));
        bed.command::<_, CreateSchedulingElementOut>(0, Opcode::CreateSchedulingElement, &input)
            .map(|out| out.scheduling_element_id())
    };
    let root = create(&mut bed, SchedulingContext::zeroed()).unwrap();
    let mut c = SchedulingContext::zeroed();
    c.set().element_type(1).element_attributes(2).parent_element_id(root).max_average_bw(1000);
    let vport = create(&mut bed, c).unwrap();
    let mut modify = ModifySchedulingElementIn::zeroed();
    c.set().max_average_bw(250);
    modify.set().scheduling_hierarchy(2).scheduling_element_id(vport).modify_bitmask(2).scheduling_context(c);
    let _: ModifySchedulingElementOut = bed.command(0, Opcode::ModifySchedulingElement, &modify).unwrap();
    let query = QuerySchedulingElementIn::with(|s| s.scheduling_hierarchy(2).scheduling_element_id(vport));
    let out: QuerySchedulingElementOut = bed.command(0, Opcode::QuerySchedulingElement, &query).unwrap();
    assert_eq!(out.scheduling_context(), c);
    let destroy = |bed: &mut Bed, id| {
        let input = DestroySchedulingElementIn::with(|s| s.scheduling_hierarchy(2).scheduling_element_id(id));
        bed.command::<_, DestroySchedulingElementOut>(0, Opcode::DestroySchedulingElement, &input)
    };
    assert!(destroy(&mut bed, root).is_err(), "the vport's is below it");
    destroy(&mut bed, vport).unwrap();
    destroy(&mut bed, root).unwrap();
    let set = SetL2TableEntryIn::with(|s| s.table_index(5).mac_address(word(GIVEN)));
    let _: CmdOut = bed.command(0, Opcode::SetL2TableEntry, &set).unwrap();
    let query = QueryL2TableEntryIn::with(|s| s.table_index(5));
    let out: QueryL2TableEntryOut = bed.command(0, Opcode::QueryL2TableEntry, &query).unwrap();
    assert_eq!(out.mac_address(), word(GIVEN));
    let delete = DeleteL2TableEntryIn::with(|s| s.table_index(5));
    let _: CmdOut = bed.command(0, Opcode::DeleteL2TableEntry, &delete).unwrap();
    let out: QueryL2TableEntryOut = bed.command(0, Opcode::QueryL2TableEntry, &query).unwrap();
    assert_eq!(out.mac_address(), MacAddressLayout::zeroed());
}

/// A bed in which the PF owns the VFs' settings.
fn owned() -> Bed {
    Bed::new(Config { strict: Strict { owner: true, ..Strict::default() }, ..Config::default() })
}

#[test]
fn a_vf_of_a_strict_adapter_has_no_address_until_somebody_gives_it_one() {
    let mut bed = owned();
    bed.function(1);
    let (c, _) = context(&mut bed, 1, None);
    assert_eq!((mac_in(&c), c.node_guid()), ([0; 6], 0));
    assert_eq!(mac_in(&context(&mut bed, 0, None).0), mac(0), "the PF has its own");
    let (mut a, mut b) = (bed.open_nic(2), bed.open_nic(1));
    send(&mut bed, &mut a, mac(1), mac(2));
    assert!(bed.received(&mut b, 0).is_none(), "in no list");
    listen(&mut bed, 1, &[GIVEN]);
    let sent = send(&mut bed, &mut a, GIVEN, mac(2));
    assert_eq!(bed.all_received(&mut b), [sent]);
    set_mac(&mut bed, 1, mac(1));
    let sent = send(&mut bed, &mut a, mac(1), mac(2));
    assert_eq!(bed.all_received(&mut b), [sent]);
}

#[test]
fn a_strict_adapter_takes_from_the_wire_what_its_table_names() {
    let mut bed = owned();
    let mut pf = bed.open_nic(0);
    let sent = frame(mac(0), mac(9), 0x88b5, &[1; 46]);
    bed.inject(&sent);
    assert!(bed.received(&mut pf, 0).is_none(), "no entry yet");
    let set = SetL2TableEntryIn::with(|s| s.mac_address(word(mac(0))));
    let _: CmdOut = bed.command(0, Opcode::SetL2TableEntry, &set).unwrap();
    bed.inject(&sent);
    assert_eq!(bed.all_received(&mut pf), [sent]);
}
