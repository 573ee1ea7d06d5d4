//! The driver's unreliable and raw services over a node: UD, UC, multicast groups and raw packets for programs, and refused requests.

use driver::{
    AddressHandle, Ah, Completion, Cq, Flow, FlowAttr, FlowKind, FlowSpec, Pd, Qp, QpAttr,
    QpAttrMask as Mask, QpInit, QpState, RawCompletion, SendFlags, SendOp, SendWr, Service, Target, WcFlags,
    WcOpcode, WcStatus,
};
use ironverbs_tests::{
    end::{End, Make, QKEY, SOON, run},
    program::Scratch,
};
use node::{Node, open_device_of};
use std::sync::Arc;

/// Bytes to send from, and behind them bytes to receive into.
const ROOM: usize = 8192;
const GRH: usize = 40;

/// An end on function `fid` that is not ready to send.
fn reset(node: &Arc<Node>, fid: u8, service: Service, qp: &dyn Fn(&mut QpInit)) -> End {
    End::on(&open_device_of(node, fid).expect("a function"), &Make { service, qp, ..Make::default() })
}

fn ready(node: &Arc<Node>, fid: u8, service: Service) -> End {
    End::alone(&open_device_of(node, fid).expect("a function"), service)
}

/// Two ends of `service` on functions 1 and 2.
fn ends(node: &Arc<Node>, service: Service) -> (End, End) {
    (ready(node, 1, service), ready(node, 2, service))
}

fn receive(end: &End, wr_id: u64, len: usize) {
    end.receive(wr_id, ROOM, len);
}

fn mac(end: &End) -> [u8; 6] {
    end.device.port().expect("the port").mac
}

/// Writes a frame from `end` to `to` to its own memory. Returns the length.
fn put_frame(end: &End, to: [u8; 6], ether_type: u16, len: usize) -> usize {
    let mut bytes = [&to[..], &mac(end), &ether_type.to_be_bytes()].concat();
    bytes.extend((bytes.len()..len).map(|i| i as u8));
    end.words.put(0, &bytes);
    len
}

/// Sends the first `len` bytes to `target`, and waits for the completion.
#[track_caller]
fn send(end: &End, len: usize, target: &Target<'_>) {
    end.send_to(9, len, target);
    end.good(WcOpcode::Send);
}

fn to<'a>(ah: &'a Ah, end: &End, qkey: u32) -> Target<'a> {
    Target::Datagram { ah, qpn: end.qp.qpn(), qkey }
}

/// A flow for frames to a MAC.
fn frames_to(mac: [u8; 6]) -> FlowAttr {
    let none = [[0; 6]; 2];
    let spec = FlowSpec::Eth { dst: [mac, [0xff; 6]], src: none, ether_type: [0; 2], vlan: [0; 2] };
    FlowAttr { specs: vec![spec], ..FlowAttr::default() }
}

/// A flow for frames to `end`.
fn frames_of(end: &End) -> Flow {
    Flow::create(&end.qp, &frames_to(mac(end))).expect("a flow")
}

#[test]
fn a_datagram_says_whom_it_is_from_and_wrong_keys_are_dropped() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = ends(&node, Service::Ud);
    let ah = a.ah(b.card().gid);
    let data: Vec<u8> = (0..1000).map(|i| i as u8).collect();
    a.words.put(0, &data);
    receive(&b, 1, ROOM);
    // A wrong Q_Key does not consume the receive.
    send(&a, 1000, &to(&ah, &b, QKEY + 1));
    b.nothing();
    // With the top bit set, the sender's own Q_Key is used.
    for qkey in [QKEY, 0x8000_0000] {
        send(&a, 1000, &to(&ah, &b, qkey));
        let wc = b.good(WcOpcode::Recv);
        assert_eq!((wc.byte_len as usize, wc.src_qp), (GRH + 1000, a.qp.qpn()));
        assert!(wc.flags.contains(WcFlags::GRH));
        assert_eq!(b.words.bytes(ROOM, GRH + 1000)[GRH..], data);
        receive(&b, 2, ROOM);
    }
}

#[test]
fn a_datagram_is_one_packet_and_no_more() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = ends(&node, Service::Ud);
    let ah = a.ah(b.card().gid);
    let mtu = a.device.port().expect("the port").active_mtu as usize;
    receive(&b, 1, ROOM);
    send(&a, mtu, &to(&ah, &b, QKEY));
    assert_eq!(b.good(WcOpcode::Recv).byte_len as usize, GRH + mtu);
    a.send_to(9, mtu + 1, &to(&ah, &b, QKEY));
    assert_eq!(a.next(SOON).expect("a completion").status, WcStatus::LocLenErr);
}

#[test]
fn operations_a_service_has_not_are_refused_before_the_queue_changes() {
    let (_scratch, node) = Scratch::with_node(3);
    let (ud, uc) = (ready(&node, 1, Service::Ud), reset(&node, 1, Service::Uc, &|_| ()));
    let ah = ud.ah(ud.card().gid);
    let target = to(&ah, &ud, QKEY);
    let wr = |op| SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::SIGNALED };
    let write = SendOp::Write { raddr: 0, rkey: 0 };
    for op in [write, SendOp::Read { raddr: 0, rkey: 0 }, SendOp::SendInv(1), SendOp::LocalInv(1)] {
        let error = ud.qp.post_send_to([(wr(op), target)]).expect_err("not a datagram's");
        assert_eq!(error.errno, libc::EINVAL, "{op:?}");
    }
    let error = ud.qp.post_send([wr(SendOp::Send)]).expect_err("to nobody");
    assert_eq!(error.errno, libc::EINVAL);
    let error = uc.qp.post_send_to([(wr(SendOp::Send), target)]).expect_err("it has a peer, and is in RESET");
    assert_eq!(error.errno, libc::EINVAL);
    receive(&ud, 1, ROOM);
    ud.send_to(9, 0, &target);
    ud.good(WcOpcode::Send);
    assert_eq!(ud.good(WcOpcode::Recv).byte_len as usize, GRH);
}

#[test]
fn address_handles_are_of_this_port_and_its_table() {
    let (_scratch, node) = Scratch::with_node(3);
    let a = reset(&node, 1, Service::Ud, &|_| ());
    let good = AddressHandle {
        dgid: a.device.gid(1).expect("a GID"),
        sgid_index: 1,
        is_global: true,
        port_num: 1,
        ..AddressHandle::default()
    };
    Ah::create(&a.pd, &good).expect("an address handle");
    let bad = [
        AddressHandle { port_num: 0, ..good },
        AddressHandle { port_num: 2, ..good },
        AddressHandle { is_global: false, ..good },
        AddressHandle { sgid_index: 255, ..good },
        AddressHandle { sl: 16, ..good },
    ];
    for attr in bad {
        assert_eq!(Ah::create(&a.pd, &attr).err().expect("refused").errno(), libc::EINVAL, "{attr:?}");
    }
    let empty = AddressHandle { sgid_index: 31, ..good };
    assert_eq!(Ah::create(&a.pd, &empty).err().expect("refused").errno(), libc::ENODATA);
    let ah = Ah::create(&a.pd, &good).expect("an address handle");
    assert_eq!(a.pd.clone().dealloc().expect_err("it is in use").errno(), libc::EBUSY);
    drop(ah);
}

#[test]
fn members_get_what_is_sent_to_their_group() {
    let (_scratch, node) = Scratch::with_node(3);
    let ends: Vec<End> = [1, 2, 2, 3].map(|fid| ready(&node, fid, Service::Ud)).into();
    ends.iter().for_each(|end| receive(end, 1, ROOM));
    let group = "::ffff:239.1.2.3".parse::<std::net::Ipv6Addr>().expect("an address").octets();
    let [sender, one, two, stranger] = &ends[..] else { unreachable!() };
    for end in [one, two] {
        end.qp.attach_mcast(&group, 0).expect("joined");
        end.qp.attach_mcast(&group, 0).expect("joining twice changes nothing");
    }
    let host = sender.device.gid(1).expect("a GID");
    assert_eq!(one.qp.attach_mcast(&host, 0).expect_err("not a group").errno(), libc::EINVAL);
    assert_eq!(sender.qp.detach_mcast(&group, 0).expect_err("not a member").errno(), libc::EINVAL);
    let ah = sender.ah(group);
    let target = Target::Datagram { ah: &ah, qpn: 0xff_ffff, qkey: QKEY };
    send(sender, 100, &target);
    for end in [one, two] {
        assert_eq!(end.good(WcOpcode::Recv).src_qp, sender.qp.qpn());
        assert!(end.qp.is_member());
    }
    one.qp.detach_mcast(&group, 0).expect("left");
    assert!(!one.qp.is_member());
    receive(one, 2, ROOM);
    receive(two, 2, ROOM);
    sender.send_to(9, 100, &target);
    two.good(WcOpcode::Recv);
    [one, stranger].iter().for_each(|end| end.nothing());
}

#[test]
fn attributes_are_those_of_the_service() {
    let (_scratch, node) = Scratch::with_node(3);
    let attr = |qp_state| QpAttr { qp_state, port_num: 1, qkey: QKEY, ..QpAttr::default() };
    let place = Mask::STATE | Mask::PORT | Mask::PKEY_INDEX;
    let init = [
        (Service::Uc, place | Mask::ACCESS_FLAGS, place | Mask::QKEY),
        (Service::Ud, place | Mask::QKEY, place | Mask::ACCESS_FLAGS),
        (Service::RawPacket, Mask::STATE | Mask::PORT, place),
    ];
    for (service, good, bad) in init {
        let end = reset(&node, 1, service, &|_| ());
        let refused = end.qp.modify(&attr(QpState::Init), bad).expect_err("not this service's");
        assert_eq!((refused.errno(), end.qp.state()), (libc::EINVAL, QpState::Reset), "{service:?}");
        end.qp.modify(&attr(QpState::Init), good).expect("INIT");
        assert_eq!(end.qp.query().expect("a query").qp_state, QpState::Init, "{service:?}");
    }
    let raw = ready(&node, 1, Service::RawPacket);
    let refused = raw.qp.modify(&attr(QpState::Rts), Mask::STATE | Mask::RATE_LIMIT).expect_err("none here");
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    raw.qp.modify(&attr(QpState::Err), Mask::STATE).expect("ERR");
    raw.qp.modify(&attr(QpState::Reset), Mask::STATE).expect("RESET");
    run(&raw.qp).expect("RTS");
    let ud = ready(&node, 1, Service::Ud);
    let qkey = QpAttr { qkey: 7, ..attr(QpState::Rts) };
    ud.qp.modify(&qkey, Mask::QKEY).expect("another Q_Key");
    assert_eq!(ud.qp.query().expect("a query").qkey, 7);
}

#[test]
fn raw_packets_reach_the_queue_their_flow_names() {
    let (_scratch, node) = Scratch::with_node(3);
    let [a, b, c] = [1, 2, 2].map(|fid| ready(&node, fid, Service::RawPacket));
    receive(&b, 1, ROOM);
    receive(&c, 1, ROOM);
    let len = put_frame(&a, mac(&b), 0x88b5, 200);
    send(&a, len, &Target::Peer);
    b.nothing();
    let flow = frames_of(&b);
    let rest =
        Flow::create(&c.qp, &FlowAttr { kind: FlowKind::AllDefault, ..FlowAttr::default() }).expect("a flow");
    send(&a, len, &Target::Peer);
    assert_eq!(b.good(WcOpcode::Recv).byte_len as usize, len);
    assert_eq!(b.words.bytes(ROOM, len), a.words.bytes(0, len));
    // Without its flow, frames are delivered like all others.
    drop(flow);
    receive(&b, 2, ROOM);
    send(&a, len, &Target::Peer);
    assert_eq!(c.good(WcOpcode::Recv).byte_len as usize, len);
    b.nothing();
    drop(rest);
    // RDMA continues to work.
    let (ud, peer) = ends(&node, Service::Ud);
    receive(&peer, 1, ROOM);
    let ah = ud.ah(peer.card().gid);
    ud.send_to(9, 8, &to(&ah, &peer, QKEY));
    peer.good(WcOpcode::Recv);
}

/// Otherwise its first connection would be refused as a stale one of its predecessor (IBTA 12.9.8.3.1).
#[test]
fn the_next_user_of_a_function_gets_other_numbers() {
    let (_scratch, node) = Scratch::with_node(3);
    let mut before = Vec::new();
    for _ in 0..10 {
        let end = reset(&node, 1, Service::Ud, &|_| ());
        let numbers = (end.qp.qpn(), end.mr.lkey() >> 8);
        assert!(before.iter().all(|(qpn, key)| *qpn != numbers.0 && *key != numbers.1), "{numbers:x?}");
        before.push(numbers);
    }
}

/// Writes a frame from `a` to `b` with a UDP packet without checksums. Returns the length.
fn unsummed(a: &End, b: &End, tag: Option<u16>) -> usize {
    let tag = tag.map(|tci| [[0x81, 0].as_slice(), &tci.to_be_bytes()].concat()).unwrap_or_default();
    let ip = [0x45, 0, 0, 58, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [0x0f, 0xa0, 0x13, 0x88, 0, 38, 0, 0];
    let frame = [&mac(b)[..], &mac(a), &tag, &[8, 0], &ip, &udp, &[0x5a; 30]].concat();
    a.words.put(0, &frame);
    frame.len()
}

/// Ones' complement sum of big-endian words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let all: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let once = (all >> 16) + (all & 0xffff);
    ((once >> 16) + once) as u16
}

#[test]
fn checksums_of_raw_packets_are_filled_in_and_judged() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = ends(&node, Service::RawPacket);
    let _flow = frames_of(&b);
    assert!(a.device.attr().raw_checksums);
    let len = unsummed(&a, &b, None);
    for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::IP_CSUM] {
        receive(&b, 1, ROOM);
        let wr = SendWr { wr_id: 9, op: SendOp::Send, sge: &[a.sge(0, len)], flags };
        a.qp.post_send([wr]).expect("a post");
        a.good(WcOpcode::Send);
        let filled = flags.contains(SendFlags::IP_CSUM);
        assert_eq!(b.good(WcOpcode::Recv).flags.contains(WcFlags::IP_CSUM), filled);
        let got = b.words.bytes(ROOM, len);
        let (ip, udp) = (&got[14..34], &got[34..]);
        let pseudo = [&ip[12..], &[0, 17], &udp[4..6], udp].concat();
        assert_eq!((sum(ip) == 0xffff, sum(&pseudo) == 0xffff), (filled, filled));
    }
    // On other services there is no checksum to fill in.
    let ud = ready(&node, 1, Service::Ud);
    let ah = ud.ah(ud.card().gid);
    let wr = SendWr { wr_id: 9, op: SendOp::Send, sge: &[], flags: SendFlags::IP_CSUM };
    let refused = ud.qp.post_send_to([(wr, to(&ah, &ud, QKEY))]).expect_err("no raw packet");
    assert_eq!(refused.errno, libc::EINVAL);
}

#[test]
fn vlan_tags_come_in_the_frame_or_beside_it() {
    let (_scratch, node) = Scratch::with_node(3);
    let a = ready(&node, 1, Service::RawPacket);
    for strip in [false, true] {
        let b = reset(&node, 2, Service::RawPacket, &|init| init.strip_vlan = strip);
        run(&b.qp).expect("RTS");
        let _flow = frames_of(&b);
        receive(&b, 1, ROOM);
        let len = unsummed(&a, &b, Some(0x6123));
        let sent = a.words.bytes(0, len);
        send(&a, len, &Target::Peer);
        let (mut wc, mut cqe) = (Completion::default(), RawCompletion::zeroed());
        testkit::until("a completion", SOON, || b.cq.poll_raw(&mut wc, &mut cqe));
        let (wanted, tag) = match strip {
            false => (sent, 0),
            true => ([&sent[..12], &sent[16..]].concat(), 0x6123),
        };
        assert_eq!((b.words.bytes(ROOM, wc.byte_len as usize), cqe.vlan_info()), (wanted, tag));
    }
    let device = open_device_of(&node, 1).expect("a function");
    let (pd, cq) = (Pd::alloc(&device).expect("a PD"), Cq::create(&device, 8, 0).expect("a CQ"));
    let init = QpInit { strip_vlan: true, ..QpInit::new(Service::Ud, &cq, &cq) };
    assert_eq!(Qp::create(&pd, &init).err().expect("refused").errno(), libc::EOPNOTSUPP);
}

/// A flow for IPv6 frames with this next header, traffic class and hop limit.
fn v6_like(proto: [u8; 2], class: [u8; 2], ttl: [u8; 2]) -> FlowAttr {
    let specs = vec![FlowSpec::IpMore { version: 6, proto, class, ttl }];
    FlowAttr { specs, ..FlowAttr::default() }
}

#[test]
fn flows_look_at_the_whole_ip_header() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = ends(&node, Service::RawPacket);
    let mut ip = [0; 40];
    // Class 0xb8, 10 bytes of an unknown protocol, hop limit 9.
    (ip[0], ip[1], ip[5], ip[6], ip[7]) = (0x6b, 0x80, 10, 99, 9);
    let frame = [&mac(&b)[..], &mac(&a), &[0x86, 0xdd], &ip, &[1; 10]].concat();
    a.words.put(0, &frame);
    // Lengths are not checked: rdma-core's own tests send packets with lengths beyond their end.
    let too_long = (frame.clone(), v6_like([99, 0xff], [0, 0], [9, 0xff]));
    for (attr, fits) in [
        (v6_like([99, 0xff], [0xb8, 0xff], [9, 0xff]), true),
        (v6_like([98, 0xff], [0, 0], [0, 0]), false),
        (v6_like([0, 0], [0xb4, 0xfc], [0, 0]), false),
        (v6_like([0, 0], [0, 0], [8, 0xff]), false),
        (v6_like([0, 0], [0xb8, 0xfc], [8, 0xfe]), true),
    ] {
        let flow = Flow::create(&b.qp, &attr).expect("a flow");
        receive(&b, 1, ROOM);
        send(&a, frame.len(), &Target::Peer);
        match fits {
            true => assert_eq!(b.good(WcOpcode::Recv).byte_len as usize, frame.len(), "{attr:?}"),
            false => b.nothing(),
        }
        drop(flow);
    }
    let (mut frame, attr) = too_long;
    frame[14 + 5] = 50;
    a.words.put(0, &frame);
    let _flow = Flow::create(&b.qp, &attr).expect("a flow");
    send(&a, frame.len(), &Target::Peer);
    assert!(!b.good(WcOpcode::Recv).flags.contains(WcFlags::IP_CSUM));
}

#[test]
fn raw_packets_posted_in_error_are_flushed_in_order() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = ends(&node, Service::RawPacket);
    let state = |qp_state| QpAttr { qp_state, ..QpAttr::default() };
    let flushed = |wanted: std::ops::Range<u64>| {
        for wr_id in wanted {
            let wc = b.next(SOON).expect("a completion");
            assert_eq!((wc.wr_id, wc.status, wc.qpn), (wr_id, WcStatus::WrFlushErr, b.qp.qpn()));
        }
        b.nothing();
    };
    for _ in 0..2 {
        (0..8).for_each(|wr_id| receive(&b, wr_id, 1000));
        b.nothing();
        b.qp.modify(&state(QpState::Err), Mask::STATE).expect("ERR");
        flushed(0..8);
        // Sends have a doorbell; receives have none.
        (9..12).for_each(|_| b.send_to(9, 100, &Target::Peer));
        assert!(
            (0..3).all(|_| b.next(SOON).is_some_and(|wc| wc.status == WcStatus::WrFlushErr && wc.wr_id == 9))
        );
        (20..26).for_each(|wr_id| receive(&b, wr_id, 1000));
        flushed(20..26);
        // It can be used again.
        b.qp.modify(&state(QpState::Reset), Mask::STATE).expect("RESET");
        run(&b.qp).expect("RTS");
        receive(&b, 30, ROOM);
        let flow = frames_of(&b);
        let len = put_frame(&a, mac(&b), 0x88b5, 200);
        a.send_to(9, len, &Target::Peer);
        assert_eq!(b.good(WcOpcode::Recv).wr_id, 30);
        drop(flow);
        a.good(WcOpcode::Send);
        // Flushed completions that were not polled are discarded by the reset.
        (40..43).for_each(|wr_id| receive(&b, wr_id, 1000));
        b.qp.modify(&state(QpState::Err), Mask::STATE).expect("ERR");
        b.qp.modify(&state(QpState::Reset), Mask::STATE).expect("RESET");
        b.nothing();
        run(&b.qp).expect("RTS");
    }
}

#[test]
fn frames_to_groups_come_back_unless_the_queue_blocks_them() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = (
        reset(&node, 1, Service::RawPacket, &|_| ()),
        reset(&node, 1, Service::RawPacket, &|init| init.block_multicast_loopback = true),
    );
    let group = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
    for end in [&a, &b] {
        run(&end.qp).expect("RTS");
        receive(end, 1, ROOM);
        let flow = Flow::create(&end.qp, &frames_to(group)).expect("a flow");
        let len = put_frame(end, group, 0x88b5, 100);
        send(end, len, &Target::Peer);
        if std::ptr::eq(end, &a) {
            assert_eq!(end.good(WcOpcode::Recv).byte_len as usize, len);
        } else {
            end.nothing();
        }
        drop(flow);
    }
}

#[test]
fn flows_of_ended_programs_take_no_frames() {
    let (_scratch, node) = Scratch::with_node(3);
    let (a, b) = ends(&node, Service::RawPacket);
    for _ in 0..100 {
        // More than there is room for at a time.
        let gone = ready(&node, 2, Service::RawPacket);
        let flow = Flow::create(&gone.qp, &frames_to(mac(&b))).expect("a flow");
        drop(flow);
    }
    let flow = frames_of(&b);
    receive(&b, 1, ROOM);
    let len = put_frame(&a, mac(&b), 0x88b5, 64);
    a.send_to(9, len, &Target::Peer);
    b.good(WcOpcode::Recv);
    drop(flow);
    let ud = reset(&node, 2, Service::Ud, &|_| ());
    assert_eq!(Flow::create(&ud.qp, &frames_to(mac(&b))).err().expect("refused").errno(), libc::EINVAL);
    let high = FlowAttr { priority: driver::FLOW_PRIORITIES, ..frames_to(mac(&b)) };
    assert_eq!(Flow::create(&b.qp, &high).err().expect("refused").errno(), libc::EINVAL);
}
