//! The vport: addresses, promiscuity, link, counters.

use super::{manager::*, packets::*};
use devmodel::{engine::Macs, state::Counters};
use hwspec::{
    cmd::{CmdOut, Opcode, adapter::*, vport::*},
    context::{
        port::{Ieee8023Counters, Paos, Pmtu, Ppcnt},
        vport::{NicVportContext, RoceAddr},
    },
    layout::Layout,
};
use ironverbs_tests::bed::{Access, Bed, CommandError, GID_IPV4, GID_LINK_LOCAL, Path, Send, Wr, gid_v4};

fn register(bed: &mut Bed, fid: u8, id: u16, write: bool, bytes: &[u8]) -> Result<Vec<u8>, CommandError> {
    let input = AccessRegisterIn::with(|s| s.register_id(id));
    let out = bed.command_with(
        fid,
        Opcode::AccessReg,
        u16::from(!write),
        &input,
        bytes,
        CmdOut::SIZE + bytes.len(),
    )?;
    Ok(out[CmdOut::SIZE..].to_vec())
}

#[test]
fn lists_are_kept_each_for_itself() {
    let mut bed = Bed::cx5().with_function(1);
    let lists = [
        (0, vec![mac(1), [2; 6]]),
        (1, vec![[0x33, 0x33, 0, 0, 0, 1]]),
        // VLANs 5 and 9.
        (2, vec![[0, 5, 0, 0, 0, 0], [0, 9, 0, 0, 0, 0]]),
    ];
    for (kind, list) in &lists {
        let c = NicVportContext::with(|s| s.allowed_list_type(*kind).allowed_list_size(list.len() as u16));
        modify(&mut bed, 1, None, LIST, c, list).unwrap();
    }
    for (kind, list) in &lists {
        assert_eq!(&context_of(&mut bed, 1, None, *kind).1, list);
    }
    let c = NicVportContext::with(|s| s.allowed_list_size(65));
    assert!(modify(&mut bed, 1, None, LIST, c, &[[0; 6]; 65]).is_err(), "more than the advertised 64");
}

#[test]
fn a_second_address_and_promiscuity_bring_frames_for_others() {
    let other = [2; 6];
    let (mut bed, [mut a, mut b]) = Bed::with_open_nics([1, 2]);
    let sent = frame(other, mac(1), 0x88b5, &[1; 46]);
    bed.send_frame(&mut a, &sent, Send::default());
    assert!(bed.received(&mut b, 0).is_none());
    listen(&mut bed, 2, &[other]);
    bed.send_frame(&mut a, &sent, Send::default());
    assert_eq!(bed.all_received(&mut b), std::slice::from_ref(&sent));
    listen(&mut bed, 2, &[]);
    bed.send_frame(&mut a, &sent, Send::default());
    assert!(bed.received(&mut b, 0).is_none());
    modify(&mut bed, 2, None, PROMISC, NicVportContext::with(|s| s.promisc_all(true)), &[]).unwrap();
    bed.send_frame(&mut a, &sent, Send::default());
    assert_eq!(bed.all_received(&mut b), [sent]);
    assert!(context(&mut bed, 2, None).0.promisc_all());
}

/// Before a link delivers a frame it can query which functions want it.
#[test]
fn whoever_brings_frames_from_outside_sees_who_wants_them() {
    let other = [2; 6];
    let mut bed = Bed::cx5();
    let mut macs = Macs::default();
    let mut wanted = |bed: &Bed| {
        macs.refresh(&bed.adapter);
        (macs.has(other), macs.takes_strangers())
    };
    bed.open_nic(1);
    assert_eq!(wanted(&bed), (false, false));
    listen(&mut bed, 1, &[other]);
    assert_eq!(wanted(&bed), (true, false));
    modify(&mut bed, 1, None, PROMISC, NicVportContext::with(|s| s.promisc_all(true)), &[]).unwrap();
    assert_eq!(wanted(&bed), (true, true));
    bed.reset(1);
    assert_eq!(wanted(&bed), (false, false));
}

#[test]
fn a_port_that_is_down_neither_sends_nor_receives() {
    let (mut bed, [mut a, mut b]) = Bed::with_open_nics([1, 2]);
    let sent = frame(mac(2), mac(1), 0x88b5, &[1; 46]);
    let mut paos = Paos::zeroed();
    paos.set().local_port(1).admin_status(2).ase(true);
    register(&mut bed, 2, 0x5006, true, paos.as_bytes()).unwrap();
    let state: QueryVportStateOut =
        bed.command(2, Opcode::QueryVportState, &QueryVportStateIn::zeroed()).unwrap();
    assert_eq!(state.state(), 0);
    bed.send_frame(&mut a, &sent, Send::default());
    assert!(bed.received(&mut b, 0).is_none());
    bed.take_frames();
    bed.send_frame(&mut b, &frame(mac(1), mac(2), 0x88b5, &[1; 46]), Send::default());
    assert!(bed.one(b.send_cq).is_ok(), "the driver gets its completion");
    assert!(bed.take_frames().is_empty() && bed.received(&mut a, 0).is_none());
    paos.set().admin_status(1);
    register(&mut bed, 2, 0x5006, true, paos.as_bytes()).unwrap();
    bed.send_frame(&mut a, &sent, Send::default());
    assert_eq!(bed.all_received(&mut b), [sent]);
}

#[test]
fn the_mtu_is_that_of_the_register_and_of_the_vport() {
    let (mut bed, [mut b]) = Bed::with_open_nics([2]);
    let mut pmtu = Pmtu::zeroed();
    pmtu.set().local_port(1).admin_mtu(1522);
    register(&mut bed, 2, 0x5003, true, pmtu.as_bytes()).unwrap();
    let read = Pmtu::read(&register(&mut bed, 2, 0x5003, false, pmtu.as_bytes()).unwrap());
    assert_eq!((read.oper_mtu(), read.admin_mtu()), (1522, 1522));
    assert_eq!(context(&mut bed, 2, None).0.mtu(), 1522);
    bed.inject(&frame(mac(2), mac(1), 0x88b5, &[0; 1504]));
    bed.inject(&frame(mac(2), mac(1), 0x88b5, &[0; 1505]));
    assert_eq!(bed.all_received(&mut b).len(), 1);
    pmtu.set().admin_mtu(read.max_mtu() + 1);
    assert!(register(&mut bed, 2, 0x5003, true, pmtu.as_bytes()).is_err());
}

#[test]
fn vport_and_port_count_what_went_by() {
    let (mut bed, [mut a, mut b]) = Bed::with_open_nics([1, 2]);
    for (dst, len) in [(mac(2), 46), (mac(2), 986), (BROADCAST, 46), ([1, 0, 0x5e, 0, 0, 1], 86)] {
        bed.send_frame(&mut a, &frame(dst, mac(1), 0x88b5, &vec![0; len]), Send::default());
    }
    assert_eq!(bed.all_received(&mut b).len(), 4);
    let counters = |bed: &mut Bed, fid| -> QueryVportCounterOut {
        bed.command(fid, Opcode::QueryVportCounter, &QueryVportCounterIn::zeroed()).unwrap()
    };
    let (sent, got) = (counters(&mut bed, 1), counters(&mut bed, 2));
    for (tx, rx, want) in [
        (sent.transmitted_eth_unicast(), got.received_eth_unicast(), (2, 1060)),
        (sent.transmitted_eth_broadcast(), got.received_eth_broadcast(), (1, 60)),
        (sent.transmitted_eth_multicast(), got.received_eth_multicast(), (1, 100)),
        (sent.transmitted_ib_unicast(), got.received_ib_unicast(), (0, 0)),
    ] {
        assert_eq!((tx.packets(), tx.octets()), want);
        assert_eq!((rx.packets(), rx.octets()), want);
    }
    let ppcnt = Ppcnt::with(|s| s.local_port(1));
    let out = register(&mut bed, 2, 0x5008, false, ppcnt.as_bytes()).unwrap();
    let port = Ieee8023Counters::read(&out[8..]);
    assert_eq!((port.a_frames_received_ok_low(), port.a_octets_received_ok_low()), (4, 1220));
    assert_eq!(
        (port.a_multicast_frames_received_ok_low(), port.a_broadcast_frames_received_ok_low()),
        (1, 1)
    );
    assert_eq!(bed.counter(2, Counters::EthRxUnmatched), 0);
}

#[test]
fn a_reset_ends_all_of_it() {
    let (mut bed, [_]) = Bed::with_open_nics([1]);
    bed.reset(1);
    bed.inject(&frame(mac(1), mac(2), 0x88b5, &[0; 46]));
    bed.inject(&frame(BROADCAST, mac(2), 0x88b5, &[0; 46]));
    let mut nic = bed.open_nic(1);
    assert!(bed.received(&mut nic, 0).is_none(), "what came before is not for who comes now");
    bed.inject(&frame(mac(1), mac(2), 0x88b5, &[0; 46]));
    assert!(bed.received(&mut nic, 0).is_some());
}

#[test]
fn packets_of_an_address_with_a_vlan_bear_its_tag() {
    let mut bed = Bed::cx5();
    for fid in [1, 2] {
        bed.function(fid);
        let mut address = RoceAddr::zeroed();
        let [a, b, c, d, e, f] = mac(fid);
        address
            .set()
            .source_l3_address(gid_v4(fid))
            .source_mac_47_32(u16::from_be_bytes([a, b]))
            .source_mac_31_0(u32::from_be_bytes([c, d, e, f]))
            .vlan_valid(true)
            .vlan_id(7)
            .roce_version(2);
        for index in [GID_LINK_LOCAL, GID_IPV4] {
            let input = SetRoceAddressIn::with(|s| s.roce_address_index(index.into()).roce_address(address));
            let _: CmdOut = bed.command(fid, Opcode::SetRoceAddress, &input).unwrap();
            let input = QueryRoceAddressIn::with(|s| s.roce_address_index(index.into()));
            let out: QueryRoceAddressOut = bed.command(fid, Opcode::QueryRoceAddress, &input).unwrap();
            assert_eq!(out.roce_address(), address);
        }
    }
    let (a, _) = bed.pair(Path::default());
    let (from, to) = (bed.mr(1, 3000, Access::LOCAL), bed.mr(2, 3000, Access::ALL));
    let data = bed.pattern(from, 0x21);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.run();
    assert!(bed.one(a.send_cq).is_ok());
    assert_eq!(bed.bytes(to), data);
    let frames = bed.take_frames();
    assert!(frames.len() > 1 && frames.iter().all(|f| f.bytes[12..16] == [0x81, 0, 0, 7]));
}
