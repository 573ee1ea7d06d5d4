//! Ports: vport commands, the subnet management agent and the performance management agent.

use super::common::*;
use devmodel::{identity, state::Counters};
use hwspec::{
    cmd::{
        CmdOut,
        adapter::{AccessRegisterIn, QueryHcaCapIn, QueryHcaCapOut},
    },
    context::{
        caps::HcaCap,
        port::{Pmtu, Ptys},
        vport::HcaVportContext,
    },
    eqe::{EventType, PortChange},
    wire::mad::smp::*,
};

/// Returns the sub-types of the port events that function 1 received.
pub fn port_events(bed: &mut Bed) -> Vec<u8> {
    let all = bed.events(1);
    all.iter().filter(|e| e.event_type() == EventType::PortChange).map(|e| e.event_sub_type()).collect()
}

/// 14.2.5.6, 10.3.1: without a subnet manager a port is active, with a LID, and knows that of its master.
#[test]
fn a_port_comes_up_active() {
    let mut bed = Bed::infiniband();
    for fid in [0, 1, 3] {
        let c = context(&mut bed, fid, None).unwrap();
        assert_eq!((c.vport_state(), c.port_state(), c.port_physical_state()), (4, 4, 5));
        assert_eq!((c.lid(), c.sm_lid(), c.lmc()), (u16::from(fid) + 1, identity::switch_lid(0), 0));
        assert_eq!(c.port_guid(), u64::from_be_bytes(identity::guid(0, fid)));
        let info = PortInfo::read(&get(&mut bed, fid, attribute::PORT_INFO, 1));
        assert_eq!((info.port_state(), info.lid(), info.master_sm_lid()), (4, c.lid(), c.sm_lid()));
        assert_eq!((info.mtu_cap(), info.neighbor_mtu(), info.capability_mask()), (5, 5, c.cap_mask1()));
        assert_eq!((info.link_width_active(), info.link_speed_ext_active()), (2, 2), "4x, 25 Gb/s");
    }
}

#[test]
fn the_tables_have_one_entry_that_counts() {
    let mut bed = Bed::infiniband().with_function(1);
    let mut gid = QueryHcaVportGidIn::zeroed();
    gid.set().gid_index(0xffff);
    let out = bed.command_with(1, Opcode::QueryHcaVportGid, 0, &gid, &[], 16 + 8 * 16).expect("all GIDs");
    assert_eq!(QueryHcaVportGidOut::read(&out).gids_num(), 8);
    assert_eq!(out[16..32], identity::port_gid(0, 1));
    // Entries without a GUID have only the prefix.
    let empty = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(out[32..], [empty; 7].concat());
    let mut pkey = QueryHcaVportPkeyIn::zeroed();
    pkey.set().pkey_index(0xffff);
    let out =
        bed.command_with(1, Opcode::QueryHcaVportPkey, 0, &pkey, &[], 16 + 128 * 4).expect("all P_Keys");
    assert_eq!(out[16..20], [0, 0, 0xff, 0xff]);
    assert!(out[20..].iter().all(|b| *b == 0));
    pkey.set().pkey_index(128);
    assert!(bed.command_with(1, Opcode::QueryHcaVportPkey, 0, &pkey, &[], 20).is_err());
    gid.set().gid_index(8);
    assert!(bed.command_with(1, Opcode::QueryHcaVportGid, 0, &gid, &[], 32).is_err());
}

#[test]
fn an_ethernet_port_knows_none_of_it() {
    let mut bed = Bed::cx5().with_function(1);
    assert!(context(&mut bed, 1, None).is_err());
    assert!(mad_ifc(&mut bed, 1, smp(Method::Get, attribute::NODE_INFO, 0, &[]).as_bytes(), 3).is_err());
}

#[test]
fn capabilities_and_registers_are_those_of_the_link() {
    let mut bed = Bed::infiniband().with_function(1);
    let out: QueryHcaCapOut = bed.command(1, Opcode::QueryHcaCap, &QueryHcaCapIn::zeroed()).expect("caps");
    let caps = HcaCap::read(&out.capability());
    assert_eq!(
        (caps.port_type(), caps.ib_virt(), caps.roce(), caps.eth_net_offloads()),
        (0, true, false, false)
    );
    let read = |bed: &mut Bed, id: u16, size: usize| {
        let input = AccessRegisterIn::with(|s| s.register_id(id));
        let out = bed.command_with(1, Opcode::AccessReg, 1, &input, &vec![0; size], CmdOut::SIZE + size);
        out.expect("a register").split_off(CmdOut::SIZE)
    };
    let ptys = Ptys::read(&read(&mut bed, 0x5004, 0x40));
    assert_eq!((ptys.proto_mask(), ptys.ib_link_width_oper(), ptys.ib_proto_oper()), (1, 4, 32), "4x EDR");
    let pmtu = Pmtu::read(&read(&mut bed, 0x5003, 0x10));
    assert_eq!((pmtu.max_mtu(), pmtu.oper_mtu()), (4096, 4096));
    let name = read(&mut bed, 0x6001, 0x40);
    let mad = get(&mut bed, 1, attribute::NODE_DESCRIPTION, 0);
    assert_eq!(mad, name[..], "one description, however asked for");
}

/// The capability mask bits that software sets are visible in every query; the others cannot be set.
#[test]
fn the_driver_sets_the_capabilities_of_its_agents() {
    const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
    let mut bed = Bed::infiniband();
    let before = context(&mut bed, 1, None).unwrap();
    assert_ne!(before.cap_mask1_field_select() & COMMUNICATION_MANAGEMENT, 0);
    let modify = |bed: &mut Bed, mask: u32, value: u32| {
        let context = HcaVportContext::with(|s| s.cap_mask1(value).cap_mask1_field_select(mask));
        modify(bed, 1, None, context)
    };
    modify(&mut bed, COMMUNICATION_MANAGEMENT, COMMUNICATION_MANAGEMENT).expect("set");
    let after = context(&mut bed, 1, None).unwrap().cap_mask1();
    assert_eq!(after, before.cap_mask1() | COMMUNICATION_MANAGEMENT);
    assert_eq!(port_info(&mut bed, 1).capability_mask(), after);
    modify(&mut bed, COMMUNICATION_MANAGEMENT, 0).expect("cleared");
    assert_eq!(context(&mut bed, 1, None).unwrap().cap_mask1(), before.cap_mask1());
    assert!(modify(&mut bed, 1 << 15, 0).is_err());
}

/// 14.2.5.3: the identity of the node.
#[test]
fn node_info_says_what_and_who() {
    let mut bed = Bed::infiniband();
    for (fid, device) in [(0, 0x1017), (2, 0x1018)] {
        let info = NodeInfo::read(&get(&mut bed, fid, attribute::NODE_INFO, 0));
        assert_eq!((info.node_type(), info.num_ports(), info.local_port_num()), (CHANNEL_ADAPTER, 1, 1));
        assert_eq!((info.node_guid(), info.port_guid()), (identity::guid(0, fid), identity::guid(0, fid)));
        assert_eq!((info.device_id(), info.partition_cap()), (device, 128));
    }
}

/// 14.2.5: attributes that were set are read back, and reported where the architecture requires it.
#[test]
fn what_a_manager_sets_stays() {
    let mut bed = Bed::infiniband().with_function(1);
    bed.eq(1);
    let events = port_events;
    let set = |bed: &mut Bed, id: u16, modifier: u32, data: &[u8]| {
        let answer = ask(bed, 1, &smp(Method::Set, id, modifier, data));
        assert_eq!(answer.header().method(), Method::GetResp);
        let read = ask(bed, 1, &smp(Method::Get, id, modifier, &[]));
        assert_eq!((answer.header().status(), answer.data()), (0, read.data()));
        read.data()
    };
    let name = *b"one name is as good as another, as long as it is sixty-four long";
    assert_eq!(set(&mut bed, attribute::NODE_DESCRIPTION, 0, &name), name);
    let mut pkeys = [0; 64];
    pkeys[..4].copy_from_slice(&[0xff, 0xff, 0x80, 0x01]);
    assert_eq!(set(&mut bed, attribute::PKEY_TABLE, 0, &pkeys), pkeys);
    assert_eq!(events(&mut bed), [PortChange::Pkey.raw()]);
    assert_eq!(set(&mut bed, attribute::PKEY_TABLE, 3, &[0x12, 0x34])[..2], [0x12, 0x34]);
    assert_eq!(events(&mut bed), [PortChange::Pkey.raw()]);
    let guids = set(&mut bed, attribute::GUID_INFO, 0, &[7; 64]);
    assert_eq!(guids[..8], identity::guid(0, 1), "the first is the port's own");
    assert_eq!(guids[8..], [7; 56]);
    assert_eq!(events(&mut bed), [PortChange::Guid.raw()]);
    let lanes = [0x0f, 0xf0, 0, 0, 0, 0, 0, 0xff];
    assert_eq!(set(&mut bed, attribute::SL_TO_VL, 0, &lanes)[..8], lanes);
    for table in [1, 3] {
        assert_eq!(set(&mut bed, attribute::VL_ARBITRATION, table << 16, &[0, 9, 0, 8])[..4], [0, 9, 0, 8]);
    }
    assert_eq!(events(&mut bed), [0; 0]);
}

/// 14.2.5.6: port state set by `PortInfo`, with the resulting events and states.
#[test]
fn a_port_is_taken_down_and_up() {
    let mut bed = Bed::infiniband().with_function(1);
    bed.eq(1);
    let mut info = port_info(&mut bed, 1);
    info.set().port_state(port_state::DOWN).port_physical_state(PHYS_DISABLED);
    set(&mut bed, 1, attribute::PORT_INFO, info.as_bytes());
    let c = context(&mut bed, 1, None).unwrap();
    assert_eq!((c.vport_state(), c.port_physical_state()), (1, 3));
    info.set().port_physical_state(2);
    set(&mut bed, 1, attribute::PORT_INFO, info.as_bytes());
    assert_eq!(port_info(&mut bed, 1).port_state(), port_state::ACTIVE);
    assert_eq!(port_events(&mut bed), [PortChange::Down.raw(), PortChange::Active.raw()]);
    info.set().port_state(0).port_physical_state(0).client_reregister(true);
    set(&mut bed, 1, attribute::PORT_INFO, info.as_bytes());
    assert_eq!(port_events(&mut bed), [PortChange::ClientRereg.raw()]);
    let answer = mad_ifc(&mut bed, 1, &perf(Method::Get, pma::PORT_COUNTERS, 0), 3).expect("PortCounters");
    assert_eq!(pma::PortCounters::read(&answer[pma::DATA..]).link_downed(), 1);
}

/// 13.4.7: requests for something that does not exist are refused by status, and change nothing.
#[test]
fn what_an_agent_does_not_know_is_refused() {
    let mut bed = Bed::infiniband();
    let refused = |bed: &mut Bed, request: Smp| ask(bed, 1, &request).header().status();
    let get = |id, modifier| smp(Method::Get, id, modifier, &[]);
    assert_eq!(refused(&mut bed, get(attribute::SWITCH_INFO, 0)), status::BAD_ATTRIBUTE, "not a switch");
    assert_eq!(refused(&mut bed, get(0xff90, 1)), status::BAD_ATTRIBUTE);
    assert_eq!(refused(&mut bed, get(attribute::PORT_INFO, 2)), status::BAD_FIELD);
    assert_eq!(refused(&mut bed, get(attribute::PKEY_TABLE, 4)), status::BAD_FIELD);
    assert_eq!(refused(&mut bed, get(attribute::GUID_INFO, 1)), status::BAD_FIELD);
    assert_eq!(refused(&mut bed, get(attribute::VL_ARBITRATION, 0)), status::BAD_FIELD);
    assert_eq!(refused(&mut bed, get(attribute::NODE_INFO, 1)), status::BAD_FIELD);
    assert_eq!(refused(&mut bed, smp(Method::GetTable, attribute::NODE_INFO, 0, &[])), status::BAD_METHOD);
    let moved = smp(Method::Set, attribute::PORT_INFO, 1, PortInfo::with(|s| s.lid(77)).as_bytes());
    assert_eq!(refused(&mut bed, moved), status::BAD_FIELD, "LIDs are the switch's business");
    let mut old = get(attribute::NODE_INFO, 0);
    let mut h = old.header();
    h.set().class_version(9);
    old.set().header(h);
    assert_eq!(refused(&mut bed, old), status::BAD_VERSION);
    h.set().class_version(1).mgmt_class(MgmtClass::Other(0x21));
    old.set().header(h);
    assert_eq!(refused(&mut bed, old), status::BAD_VERSION, "no such class");
    let set = smp(Method::Set, attribute::NODE_INFO, 0, &[1; 64]);
    assert_eq!(refused(&mut bed, set), status::BAD_ATTRIBUTE);
}

/// 14.2.4.1: a management key rejects requests without it: they are counted, and not answered.
#[test]
fn a_management_key_protects_the_port() {
    let mut bed = Bed::infiniband();
    let mut info = port_info(&mut bed, 1);
    info.set().m_key(0x5ec2e7).m_key_protect_bits(2).port_state(0).port_physical_state(0);
    set(&mut bed, 1, attribute::PORT_INFO, info.as_bytes());
    let mut request = smp(Method::Get, attribute::PORT_INFO, 0, &[]);
    assert!(mad_ifc(&mut bed, 1, request.as_bytes(), 0).is_err());
    assert!(mad_ifc(&mut bed, 1, request.as_bytes(), 1).is_ok(), "the driver may say that it checked");
    // The same from another port, with a packet to the agent of this one.
    assert_eq!(send_smp(&mut bed, 2, 2, &request), None);
    request.set().m_key(0x5ec2e7);
    let answer = send_smp(&mut bed, 2, 2, &request).expect("with the key");
    assert_eq!(PortInfo::read(&answer.data()).m_key_violations(), 1);
}

/// 16.1.3.5, 16.1.4.11: the counters match the traffic.
#[test]
fn port_counters_tell_what_went_over_the_wire() {
    let mut bed = Bed::infiniband();
    let (a, _) = bed.pair(Path::default());
    let (from, to) = (bed.mr(1, 4000, Access::LOCAL), bed.mr(2, 4000, Access::ALL));
    let get = |bed: &mut Bed, fid: u8, id: u16, method: Method, select: u16| {
        mad_ifc(bed, fid, &perf(method, id, select), 3).expect("counters")[pma::DATA..].to_vec()
    };
    bed.done(a, &Wr::write(from.sge(), to));
    let sent =
        pma::PortCountersExtended::read(&get(&mut bed, 1, pma::PORT_COUNTERS_EXTENDED, Method::Get, 0));
    let frames = bed.take_frames();
    let words: usize = frames.iter().filter(|f| f.from == 1).map(|f| (f.bytes.len() - 2) / 4).sum();
    assert_eq!((sent.xmit_pkts(), sent.unicast_xmit_pkts(), sent.multicast_xmit_pkts()), (4, 4, 0));
    assert_eq!(sent.xmit_data(), words as u64);
    let got = pma::PortCounters::read(&get(&mut bed, 2, pma::PORT_COUNTERS, Method::Get, 0));
    assert_eq!((got.rcv_pkts(), got.xmit_pkts(), got.rcv_errors()), (4, 1, 0));
    assert_eq!(bed.counter(2, Counters::RxPackets), 4);
    // Sent packets are cleared, the rest stays.
    get(&mut bed, 1, pma::PORT_COUNTERS_EXTENDED, Method::Set, 1 << 2);
    let after =
        pma::PortCountersExtended::read(&get(&mut bed, 1, pma::PORT_COUNTERS_EXTENDED, Method::Get, 0));
    assert_eq!((after.xmit_pkts(), after.rcv_pkts()), (0, 1));
    let info = get(&mut bed, 1, pma::CLASS_PORT_INFO, Method::Get, 0);
    assert_eq!(mad::ClassPortInfo::read(&info).capability_mask(), pma::EXTENDED_WIDTH);
}

/// 16.1: a remote requester gets the same answers as the driver.
#[test]
fn counters_are_read_over_the_wire() {
    let mut bed = Bed::infiniband();
    let (a, b) = (General::new(&mut bed, 1), General::new(&mut bed, 2));
    let request = perf(Method::Get, pma::PORT_COUNTERS_EXTENDED, 0);
    let answer = a.ask(&mut bed, identity::lid(0, 2), &request).expect("an answer");
    let h = MadHeader::read(&answer);
    assert_eq!((h.method(), h.status()), (Method::GetResp, 0));
    let counters = pma::PortCountersExtended::read(&answer[pma::DATA..]);
    assert_eq!((counters.rcv_pkts(), counters.xmit_pkts()), (1, 0), "up to the question");
    assert_eq!(bed.completions(b.qp.recv_cq), []);
}
