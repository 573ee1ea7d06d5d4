//! From the wire to a receive queue.

use super::packets::*;
use devmodel::state::Counters;
use hwspec::{
    context::tir::{HashFields, TirContext},
    cqe::{Cqe64, CqeOpcode, CqeSyndrome, eth},
};
use ironverbs_tests::bed::{Bed, ERROR, Nic, READY, RESET, Send, USER_INDEX};

const A: ([u8; 4], u16) = ([10, 0, 0, 1], 4000);
const B: ([u8; 4], u16) = ([10, 0, 0, 2], 5000);
/// Key and results of the verification suite that defines RSS.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

fn one(bed: &mut Bed, nic: &mut Nic) -> (Cqe64, Vec<u8>) {
    let got = bed.received(nic, 0).expect("a frame");
    assert!(bed.received(nic, 0).is_none(), "and no other");
    got
}

#[test]
fn a_frame_reaches_the_function_whose_address_it_bears_and_no_other() {
    let (mut bed, [mut a, mut b, mut c]) = Bed::with_open_nics([1, 2, 3]);
    let sent = frame(mac(2), mac(1), 0x88b5, &[5; 1486]);
    bed.send_frame(&mut a, &sent, Send::default());
    let (cqe, got) = one(&mut bed, &mut b);
    assert_eq!((cqe.byte_cnt(), cqe.qpn().0), (1500, 0x1000), "length, and the entry's tag");
    assert_eq!(got, sent);
    assert!(bed.all_received(&mut c).is_empty() && bed.all_received(&mut a).is_empty());
}

#[test]
fn a_broadcast_reaches_all_but_its_sender_and_the_world() {
    let (mut bed, [mut a, mut b, mut c]) = Bed::with_open_nics([1, 2, 3]);
    let sent = frame(BROADCAST, mac(1), 0x0806, &[1; 46]);
    bed.send_frame(&mut a, &sent, Send::default());
    assert_eq!(one(&mut bed, &mut b).1, sent);
    assert_eq!(one(&mut bed, &mut c).1, sent);
    assert!(bed.all_received(&mut a).is_empty());
    assert_eq!(bed.wire().left, [sent]);
}

#[test]
fn a_frame_for_nobody_here_leaves() {
    let (mut bed, [mut a, mut b]) = Bed::with_open_nics([1, 2]);
    let sent = frame([2, 2, 2, 2, 2, 2], mac(1), 0x0800, &[1; 46]);
    bed.send_frame(&mut a, &sent, Send::default());
    assert!(bed.all_received(&mut b).is_empty());
    assert_eq!(bed.wire().left, [sent]);
}

#[test]
fn checksums_are_judged() {
    let (mut bed, [mut b]) = Bed::with_open_nics([2]);
    let good = eth::L2_OK | eth::L3_OK | eth::L4_OK;
    for (packet, l4) in [
        (udp4(A, B, &[1; 99]), eth::L4_UDP),
        (tcp4(A, B, 5, 0x02, b""), eth::L4_TCP),
        (tcp4(A, B, 5, 0x10, b""), eth::L4_TCP_ACK),
        (tcp4(A, B, 5, 0x18, &[1; 99]), eth::L4_TCP_ACK_DATA),
    ] {
        let sent = frame(mac(2), mac(1), 0x0800, &packet);
        bed.inject(&sent);
        let (cqe, got) = one(&mut bed, &mut b);
        assert_eq!(got, sent);
        assert_eq!((cqe.hds_ip_ext(), cqe.l3_hdr_type(), cqe.l4_hdr_type()), (good, eth::L3_IPV4, l4));
        assert_eq!(cqe.check_sum(), sum(&sent[14..]), "the sum of all behind the Ethernet header");
        // First a bit of the data is wrong, then one of the header.
        for (at, ok) in [(sent.len() - 1, eth::L2_OK | eth::L3_OK), (14 + 8, eth::L2_OK)] {
            let mut bad = sent.clone();
            bad[at] ^= 1;
            bed.inject(&bad);
            let (cqe, _) = one(&mut bed, &mut b);
            assert_eq!(cqe.hds_ip_ext(), ok, "byte {at}");
        }
    }
}

#[test]
fn what_is_no_ip_has_no_checksums() {
    let (mut bed, [mut b]) = Bed::with_open_nics([2]);
    for payload in [&[0; 50][..], &[0x45; 50], &[0x60; 3]] {
        for ethertype in [0x0800, 0x86dd, 0x0806, 0x8100] {
            bed.inject(&frame(mac(2), mac(1), ethertype, payload));
        }
    }
    while let Some((cqe, _)) = bed.received(&mut b, 0) {
        assert_eq!((cqe.hds_ip_ext(), cqe.l4_hdr_type()), (eth::L2_OK, 0));
    }
}

#[test]
fn a_vlan_tag_goes_to_the_completion() {
    let (mut bed, [mut b]) = Bed::with_open_nics([2]);
    let plain = frame(mac(2), mac(1), 0x0800, &udp4(A, B, &[1; 1000]));
    bed.inject(&tagged(&plain, 0x6123));
    let (cqe, got) = one(&mut bed, &mut b);
    assert_eq!(got, plain);
    assert!(cqe.cv() && cqe.vlan_info() == 0x6123 && cqe.byte_cnt() as usize == plain.len());
    assert_eq!(cqe.check_sum(), sum(&plain[14..]));
    assert_ne!(cqe.hds_ip_ext() & eth::L4_OK, 0);
}

#[test]
fn a_jumbo_frame_arrives_and_one_longer_than_the_mtu_does_not() {
    let (mut bed, [mut a, mut b]) = Bed::with_open_nics([1, 2]);
    let sent = frame(mac(2), mac(1), 0x88b5, &vec![7; 8982]);
    bed.send_frame(&mut a, &sent, Send::default());
    assert_eq!(one(&mut bed, &mut b).1, sent);
    bed.inject(&frame(mac(2), mac(1), 0x88b5, &vec![7; 8983]));
    assert!(bed.received(&mut b, 0).is_none());
    assert_eq!(bed.counter(2, Counters::EthRxTooLong), 1);
}

#[test]
fn frames_to_groups_come_back_to_other_transport_domains_where_the_vport_lets_them() {
    let (mut bed, mut sender) = Bed::with_nic(1, 1);
    // The function's root table is this one.
    let mut other = bed.open_nic(1);
    // A macvlan's frames have a different source address from the function's.
    for from in [mac(1), mac(9)] {
        let sent = frame(BROADCAST, from, 0x88b5, &[7; 100]);
        for on in [true, false] {
            bed.local_loopback(1, on).expect("a vport context");
            bed.send_frame(&mut sender, &sent, Send::default());
            assert_eq!(bed.received(&mut other, 0).is_some(), on);
            bed.send_frame(&mut other, &sent, Send::default());
            assert!(bed.received(&mut other, 0).is_none());
        }
    }
}

#[test]
fn frames_to_groups_come_back_to_the_sender_s_domain_where_an_interface_asks_for_them() {
    let (mut bed, mut nic) = Bed::with_nic(1, 1);
    let c = TirContext::with(|s| s.inline_rqn(nic.rx[0].rqn).self_lb_block(2));
    let tir = bed.tir(&nic, c).expect("a TIR");
    bed.steer_all(&nic, tir);
    let sent = frame(BROADCAST, mac(1), 0x88b5, &[7; 100]);
    for on in [true, false] {
        bed.local_loopback(1, on).expect("a vport context");
        bed.send_frame(&mut nic, &sent, Send::default());
        assert_eq!(bed.received(&mut nic, 0).is_some(), on);
    }
}

#[test]
fn without_a_receive_wqe_frames_are_dropped_and_counted() {
    let (mut bed, [mut b]) = Bed::with_open_nics([2]);
    let sent = frame(mac(2), mac(1), 0x88b5, &[7; 100]);
    (0..70).for_each(|_| bed.inject(&sent));
    assert_eq!(bed.counter(2, Counters::OutOfBuffer), 6, "64 WQEs");
    assert_eq!(bed.all_received(&mut b).len(), 64);
    bed.inject(&sent);
    assert_eq!(bed.all_received(&mut b).len(), 1, "and it goes on");
}

/// Returns the WQE indices of the first queue's flushed receives.
fn flushed(bed: &mut Bed, nic: &Nic) -> Vec<u16> {
    let mut all = Vec::new();
    while let Some(cqe) = bed.poll_raw(nic.rx[0].cq) {
        let error = cqe.as_error();
        assert_eq!((cqe.opcode(), error.syndrome()), (CqeOpcode::RespErr, CqeSyndrome::WrFlushErr));
        assert_eq!((error.srqn().0, error.qpn().0), (USER_INDEX, nic.rx[0].rqn), "user index, and the queue");
        all.push(cqe.wqe_counter());
    }
    all
}

#[test]
fn receives_in_error_are_flushed_in_order_also_those_posted_later() {
    let (mut bed, mut nic) = Bed::with_nic(1, 1);
    let rqn = nic.rx[0].rqn;
    bed.modify_rq(1, rqn, READY, ERROR).expect("ERR");
    bed.run();
    assert_eq!(flushed(&mut bed, &nic), (0..64).collect::<Vec<_>>());
    assert_eq!(bed.counter(1, Counters::RespCqeFlushError), 64);
    // Receives need no doorbell.
    for first in [64, 80, 96] {
        bed.fill_last(&mut nic, 16);
        bed.advance(100_000_000_000);
        assert_eq!(flushed(&mut bed, &nic), (first..first + 16).collect::<Vec<_>>());
    }
    bed.modify_rq(1, rqn, ERROR, RESET).expect("RESET");
    assert_eq!(bed.next_timer(), None, "nothing is looked for any more");
}

#[test]
fn a_queue_in_error_that_nobody_posts_to_is_left_alone_some_day() {
    let (mut bed, nic) = Bed::with_nic(1, 1);
    bed.modify_rq(1, nic.rx[0].rqn, READY, ERROR).expect("ERR");
    let looks = (0..100).take_while(|_| bed.advance_to_timer()).count();
    assert!((10..40).contains(&looks), "{looks} looks");
    assert_eq!(flushed(&mut bed, &nic).len(), 64);
}

#[test]
fn a_queue_that_fails_flushes_what_is_behind_and_only_if_it_was_made_to() {
    for flush in [true, false] {
        let (mut bed, mut nic) = Bed::with_nic(2, 0);
        bed.add_queue(&mut nic, 64, |c| {
            c.set().flush_in_error_en(flush);
        });
        let tir = bed.direct_tir(&nic, 0);
        bed.steer_all(&nic, tir);
        // The first WQE gets an invalid key.
        bed.spoil(&nic);
        bed.inject(&frame(mac(2), mac(1), 0x88b5, &[7; 100]));
        let failed = bed.poll(nic.rx[0].cq).expect("a completion");
        assert_eq!((failed.error, failed.wqe), (Some(CqeSyndrome::LocalProtErr), 0));
        bed.advance(1_000_000_000);
        assert_eq!(flushed(&mut bed, &nic).len(), if flush { 63 } else { 0 });
    }
}

/// A net device of function 2 that distributes received frames over four queues by the Toeplitz hash of addresses and ports.
fn spread(ipv6: bool) -> (Bed, Nic) {
    let (mut bed, nic) = Bed::with_nic(2, 4);
    let rqt = bed.rqt(&nic);
    let fields = HashFields::with(|s| s.selected_fields(0xf).l3_prot_type(ipv6));
    let mut c = TirContext::zeroed();
    c.set()
        .disp_type(1)
        .indirect_table(rqt)
        .rx_hash_fn(2)
        .rx_hash_toeplitz_key(KEY)
        .rx_hash_field_selector_outer(fields);
    let tir = bed.tir(&nic, c).expect("a TIR");
    bed.steer_all(&nic, tir);
    (bed, nic)
}

#[test]
fn the_hash_is_that_of_the_verification_suite() {
    let v4 = |a: [u8; 4], b: [u8; 4]| ipv4(a, b, 17, &[0; 8]);
    let suite = [
        (([66, 9, 149, 187], 2794), ([161, 142, 100, 80], 1766), 0x51cc_c178, 0x323e_8fc2),
        (([199, 92, 111, 2], 14230), ([65, 69, 140, 83], 4739), 0xc626_b0ea, 0xd718_262a),
        (([24, 19, 198, 95], 12898), ([12, 22, 207, 184], 38024), 0x5c2b_394a, 0xd2d0_a5de),
    ];
    let (mut bed, mut nic) = spread(false);
    for (src, dst, with_ports, without) in suite {
        for (packet, hash, kind) in [
            (tcp4(src, dst, 1, 0x10, b"x"), with_ports, eth::HASH_IPV4 | eth::HASH_TCP),
            (v4(src.0, dst.0), without, eth::HASH_IPV4),
        ] {
            bed.inject(&frame(mac(2), mac(1), 0x0800, &packet));
            let (cqe, _) = bed.received(&mut nic, hash as usize % 4).expect("in the queue the hash says");
            assert_eq!((cqe.rx_hash_result(), cqe.rx_hash_type()), (hash, kind));
        }
    }
}

#[test]
fn flows_spread_over_the_queues_and_each_stays_in_its_own() {
    let (mut bed, mut nic) = spread(false);
    for port in 1000..1100 {
        let flow = frame(mac(2), mac(1), 0x0800, &tcp4((A.0, port), B, 1, 0x10, b"x"));
        bed.inject(&flow);
        bed.inject(&flow);
    }
    for q in 0..4 {
        let mut ports = Vec::new();
        while let Some((_, f)) = bed.received(&mut nic, q) {
            ports.push(u16::from_be_bytes([f[34], f[35]]));
        }
        assert!((20..=80).contains(&ports.len()), "queue {q} got {}", ports.len());
        assert!(ports.chunks(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn rdma_goes_to_queue_pairs_and_all_else_to_the_net_device() {
    let mut bed = Bed::cx5();
    let (qp, _) = bed.pair(ironverbs_tests::bed::Path::default());
    let mut nic = bed.open_nic(1);
    let before = bed.counter(1, Counters::RxPackets);
    let roce = frame(mac(1), mac(2), 0x0800, &udp4(A, ([10, 0, 0, 2], 4791), &[0; 40]));
    bed.inject(&roce);
    assert!(bed.received(&mut nic, 0).is_none(), "a RoCE packet, if a damaged one");
    assert_eq!(bed.counter(1, Counters::RxPackets), before + 1);
    bed.inject(&frame(mac(1), mac(2), 0x0800, &udp4(A, ([10, 0, 0, 2], 4792), &[0; 40])));
    assert!(bed.received(&mut nic, 0).is_some());
    assert_eq!(qp.fid, 1);
}

#[test]
fn ipv6_is_hashed_and_judged_too() {
    // From the verification suite.
    let src = [0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x07];
    let dst = [0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03, 0, 0, 0, 0, 0, 0, 0, 0x01];
    let (mut bed, mut nic) = spread(true);
    let mut tcp = [0; 20];
    tcp[..4].copy_from_slice(&[0x0a, 0xea, 0x06, 0xe6]);
    tcp[12] = 5 << 4;
    let pseudo = [&src[..], &dst, &[0, 0, 0, 20, 0, 0, 0, 6], &tcp].concat();
    tcp[16..18].copy_from_slice(&(!sum(&pseudo)).to_be_bytes());
    bed.inject(&frame(mac(2), mac(1), 0x86dd, &ipv6(src, dst, 6, &tcp)));
    let (cqe, _) = bed.received(&mut nic, 0x4020_7d3d % 4).expect("in the queue the hash says");
    assert_eq!((cqe.rx_hash_result(), cqe.rx_hash_type()), (0x4020_7d3d, eth::HASH_IPV6 | eth::HASH_TCP));
    assert_eq!((cqe.l3_hdr_type(), cqe.hds_ip_ext()), (eth::L3_IPV6, eth::L2_OK | eth::L3_OK | eth::L4_OK));
}
