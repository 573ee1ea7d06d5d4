//! Frames on the wire: built frames parse back, and no received bytes can do harm.

use ironverbs_hwspec::handle::{Psn, Qpn, Srqn};
use ironverbs_hwspec::layout::{Bits, Layout};
use ironverbs_hwspec::wire::ip::{gid_of_v4, v4_of_gid};
use ironverbs_hwspec::wire::*;
use proptest::prelude::*;

fn opcode() -> impl Strategy<Value = BthOpcode> {
    (0u8..=255).prop_map(BthOpcode::from_raw).prop_filter("known", |op| op.is_known())
}

fn addresses() -> impl Strategy<Value = IpPair> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| IpPair::V4 { src, dst }),
        any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| IpPair::V6 { src, dst }),
    ]
}

prop_compose! {
    fn envelope()(
        addresses in addresses(),
        macs in any::<([u8; 6], [u8; 6])>(),
        tag in proptest::option::of((0u8..8, 0u16..4096)),
        (traffic_class, hop_limit, flow_label) in (any::<u8>(), any::<u8>(), 0u32..1 << 20),
        (identification, src_port) in any::<(u16, u16)>(),
    ) -> Envelope {
        let vlan = tag.map(|(pcp, vid)| {
            let mut vlan = Vlan::zeroed();
            vlan.set().pcp(pcp).vid(vid);
            vlan
        });
        Envelope {
            vlan, traffic_class, hop_limit, flow_label, identification, src_port,
            ..Envelope::new(macs.0, macs.1, addresses)
        }
    }
}

prop_compose! {
    fn packet()(
        opcode in opcode(),
        (se, mig_req, ack_req, becn) in any::<(bool, bool, bool, bool)>(),
        (pkey, qpn, psn) in any::<(u16, u32, u32)>(),
        (va, key, len) in any::<(u64, u32, u32)>(),
        (swap_add, compare, original) in any::<(u64, u64, u64)>(),
        (imm, ieth, syndrome) in any::<(u32, u32, u8)>(),
    ) -> Packet {
        let mut p = Packet::default();
        let qpn = Qpn(qpn & 0xff_ffff);
        p.bth.set().opcode(opcode).se(se).mig_req(mig_req).pkey(pkey).becn(becn);
        p.bth.set().dest_qp(qpn).ack_req(ack_req).psn(Psn::new(psn));
        p.deth.set().qkey(key).src_qp(qpn);
        p.xrceth.set().srqn(Srqn(qpn.0));
        p.reth.set().va(va).rkey(key).dma_len(len);
        p.atomic.set().va(va).rkey(key).swap_add(swap_add).compare(compare);
        p.aeth.set().syndrome(Syndrome::from_bits(syndrome.into())).msn(Psn::new(len));
        p.atomic_ack.set().original(original);
        p.imm = imm;
        p.ieth = ieth;
        p
    }
}

prop_compose! {
    fn route()(
        (vl, sl) in (0u8..16, 0u8..16),
        (dlid, slid) in any::<(u16, u16)>(),
        global in any::<bool>(),
        (sgid, dgid) in any::<([u8; 16], [u8; 16])>(),
        (traffic_class, hop_limit, flow_label) in (any::<u8>(), any::<u8>(), 0u32..1 << 20),
    ) -> Route {
        let grh = global.then_some(Grh { sgid, dgid, traffic_class, flow_label, hop_limit });
        Route { vl, sl, dlid, slid, grh }
    }
}

fn build_routed(route: &Route, packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xee; 1024];
    let len = write_routed(&mut frame, route, packet, payload).unwrap();
    frame.truncate(len);
    frame
}

fn build(envelope: &Envelope, packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let len = build::frame_len(envelope, packet.bth.opcode(), payload.len());
    let mut frame = vec![0xee; len];
    assert_eq!(write_frame(&mut frame, envelope, packet, payload), Some(len));
    frame
}

/// Calls every getter.
fn read_all(h: &Headers<'_>) -> String {
    let network =
        (h.ethernet(), h.vlan(), h.ipv4(), h.ipv6(), h.addresses(), h.traffic_class(), h.is_ce_marked());
    let transport = (h.udp(), h.bth(), h.deth(), h.xrceth(), h.reth(), h.atomic(), h.aeth(), h.atomic_ack());
    let rest =
        (h.imm(), h.ieth(), h.payload_range(), h.payload(), h.icrc(), h.icrc_ok(), h.icrc_range(), h.grh());
    format!("{h:?} {network:?} {transport:?} {rest:?} {:?}", h.padded_range())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn what_is_built_is_parsed_back(
        envelope in envelope(), packet in packet(), payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let frame = build(&envelope, &packet, &payload);
        let h = Headers::parse(&frame).unwrap();
        prop_assert!(h.icrc_ok());
        let taken_on_trust = Headers::of_built(&frame, frame.len()).unwrap();
        prop_assert_eq!(read_all(&taken_on_trust), read_all(&h));
        prop_assert_eq!(h.payload(), Some(&payload[..]));
        prop_assert_eq!(h.frame_len(), frame.len());
        prop_assert_eq!((h.ethernet().src(), h.ethernet().dst()), (envelope.src_mac, envelope.dst_mac));
        prop_assert_eq!(h.vlan().map(|v| (v.pcp(), v.vid())), envelope.vlan.map(|v| (v.pcp(), v.vid())));
        prop_assert_eq!(h.addresses(), envelope.addresses);
        prop_assert_eq!(h.traffic_class(), envelope.traffic_class);
        prop_assert_eq!(h.udp().src_port(), envelope.src_port);
        if let Some(ip) = h.ipv6() {
            prop_assert_eq!((ip.hop_limit(), ip.flow_label()), (envelope.hop_limit, envelope.flow_label));
            prop_assert_eq!(&h.grh()[..], ip.as_bytes());
        }
        if let Some(ip) = h.ipv4() {
            prop_assert_eq!((ip.ttl(), ip.identification()), (envelope.hop_limit, envelope.identification));
            prop_assert_eq!(&h.grh()[20..], ip.as_bytes());
        }
        let mut bth = packet.bth;
        bth.set().pad_count(pad(payload.len()) as u8);
        prop_assert_eq!(h.bth(), bth);
        let op = bth.opcode();
        prop_assert_eq!(h.deth(), op.has_deth().then_some(packet.deth));
        prop_assert_eq!(h.xrceth(), op.has_xrceth().then_some(packet.xrceth));
        prop_assert_eq!(h.reth(), op.has_reth().then_some(packet.reth));
        prop_assert_eq!(h.atomic(), op.has_atomic_eth().then_some(packet.atomic));
        prop_assert_eq!(h.aeth(), op.has_aeth().then_some(packet.aeth));
        prop_assert_eq!(h.atomic_ack(), op.has_atomic_ack_eth().then_some(packet.atomic_ack));
        prop_assert_eq!(h.imm(), op.has_imm().then_some(packet.imm));
        prop_assert_eq!(h.ieth(), op.has_ieth().then_some(packet.ieth));
    }

    #[test]
    fn what_is_routed_is_parsed_back(
        route in route(), packet in packet(), payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let frame = build_routed(&route, &packet, &payload);
        let h = Headers::parse_route(&frame, frame.len()).unwrap();
        prop_assert!(h.icrc_ok());
        prop_assert_eq!(h.payload(), Some(&payload[..]));
        let lrh = h.lrh().unwrap();
        prop_assert_eq!((lrh.vl(), lrh.sl(), lrh.dlid(), lrh.slid()), (route.vl, route.sl, route.dlid, route.slid));
        prop_assert_eq!(h.has_grh(), route.grh.is_some());
        if let Some(grh) = route.grh {
            prop_assert_eq!(h.addresses(), IpPair::V6 { src: grh.sgid, dst: grh.dgid });
            let ip = h.ipv6().unwrap();
            prop_assert_eq!((ip.hop_limit(), ip.flow_label()), (grh.hop_limit, grh.flow_label));
            prop_assert_eq!(h.traffic_class(), grh.traffic_class);
            prop_assert_eq!(&h.grh()[..], ip.as_bytes());
        } else {
            prop_assert_eq!(h.grh(), [0; 40]);
        }
        prop_assert_eq!((h.deth(), h.reth(), h.imm()), (
            packet.bth.opcode().has_deth().then_some(packet.deth),
            packet.bth.opcode().has_reth().then_some(packet.reth),
            packet.bth.opcode().has_imm().then_some(packet.imm),
        ));
        let head = &frame[..h.payload_start()];
        prop_assert_eq!(Headers::parse_route(head, frame.len()).unwrap().payload_range(), h.payload_range());
        read_all(&h);
    }

    #[test]
    fn a_routed_frame_of_another_length_is_refused(route in route(), packet in packet(), len in 0usize..40) {
        let mut frame = build_routed(&route, &packet, &vec![7; len]);
        for cut in 0..frame.len() {
            prop_assert!(Headers::parse_route(&frame[..cut], cut).is_err());
        }
        frame.push(0);
        prop_assert!(Headers::parse_route(&frame, frame.len()).is_err());
    }

    /// IBTA 7.8.1: the ICRC does not cover fields that a switch or router may change.
    #[test]
    fn the_icrc_of_a_routed_frame_covers_what_nobody_may_change(route in route(), at in 0usize..60, bit in 0u8..8) {
        let mut packet = Packet::default();
        packet.bth.set().opcode(BthOpcode::UdSendOnly);
        let mut frame = build_routed(&route, &packet, &[7; 40]);
        let end = frame.len() - 2;
        let whole = Icrc::of_route(&frame[..end - 4]).finish();
        frame[at] ^= 1 << bit;
        let bth = if route.grh.is_some() { 48 } else { 8 };
        let of_global = at < 8 || at == 8 && bit < 4 || (9..12).contains(&at) || at == 15;
        let may_change = at == 0 && bit >= 4 || at == bth + 4 || route.grh.is_some() && of_global;
        // A changed link next header shifts the fields that are excluded.
        if at != 1 || bit > 1 {
            prop_assert_eq!(Icrc::of_route(&frame[..end - 4]).finish() == whole, may_change);
        }
    }

    #[test]
    fn no_routed_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), lnh in 0u8..4, global in any::<bool>()) {
        let mut bytes = bytes;
        if bytes.len() >= 60 {
            let words = ((bytes.len() - 2) / 4) as u16;
            bytes.truncate(usize::from(words) * 4 + 2);
            bytes[0] &= 0xf0;
            bytes[1] = bytes[1] & 0xfc | lnh;
            bytes[4..6].copy_from_slice(&words.to_be_bytes());
            if global {
                bytes[8] = 0x60;
                bytes[14] = GRH_NEXT_HEADER;
                bytes[12..14].copy_from_slice(&(words * 4 - 48).to_be_bytes());
            }
        }
        if let Ok(h) = Headers::parse_route(&bytes, bytes.len()) {
            read_all(&h);
            if let Some(range) = h.payload_range() {
                prop_assert!(range.end <= bytes.len());
            }
        }
    }

    #[test]
    fn headers_alone_parse_like_the_whole(
        envelope in envelope(), packet in packet(), payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let frame = build(&envelope, &packet, &payload);
        let whole = Headers::parse(&frame).unwrap();
        let head = &frame[..whole.payload_start()];
        let h = Headers::parse_head(head, frame.len()).unwrap();
        prop_assert_eq!(h.payload_range(), whole.payload_range());
        prop_assert_eq!((h.bth(), h.reth(), h.imm()), (whole.bth(), whole.reth(), whole.imm()));
        prop_assert!(!h.icrc_ok());
        read_all(&h);
        let most = &frame[..frame.len().min(MAX_HEADERS)];
        prop_assert!(Headers::parse_head(most, frame.len()).is_ok());
    }

    #[test]
    fn a_cut_frame_is_refused_at_every_length(envelope in envelope(), packet in packet(), len in 0usize..40) {
        let frame = build(&envelope, &packet, &vec![7; len]);
        for cut in 0..frame.len() {
            prop_assert_eq!(Headers::parse(&frame[..cut]).err(), Some(ParseError::Truncated), "{} bytes", cut);
        }
    }

    #[test]
    fn ethernet_padding_behind_the_packet_is_ignored(envelope in envelope(), packet in packet()) {
        let mut frame = build(&envelope, &packet, b"x");
        frame.extend([0; 46]);
        let h = Headers::parse(&frame).unwrap();
        prop_assert!(h.icrc_ok());
        prop_assert_eq!(h.payload(), Some(&b"x"[..]));
    }

    #[test]
    fn a_damaged_frame_is_refused_or_read_but_never_panics(
        envelope in envelope(), packet in packet(), len in 0usize..40,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut frame = build(&envelope, &packet, &vec![7; len]);
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        if let Ok(h) = Headers::parse(&frame) {
            read_all(&h);
        }
    }

    #[test]
    fn a_changed_payload_or_header_fails_the_icrc(
        envelope in envelope(), packet in packet(), len in 1usize..40, at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let mut frame = build(&envelope, &packet, &vec![7; len]);
        let start = Headers::parse(&frame).unwrap().payload_start();
        let at = start + at.index(frame.len() - start);
        frame[at] ^= 1 << bit;
        prop_assert!(!Headers::parse(&frame).unwrap().icrc_ok());
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200), v6 in any::<bool>()) {
        prop_assert!(Headers::parse(&bytes).is_ok_and(|h| !read_all(&h).is_empty()) || Headers::parse(&bytes).is_err());
        // The same bytes after an Ethernet header that makes them pass to the next check.
        let mut frame = vec![0; 12];
        frame.extend(if v6 { EtherType::IPV6 } else { EtherType::IPV4 }.bytes());
        frame.extend(bytes);
        if let Ok(h) = Headers::parse(&frame) {
            read_all(&h);
        }
    }

    #[test]
    fn a_buffer_too_short_gets_nothing(envelope in envelope(), packet in packet(), len in 0usize..40) {
        let payload = vec![7; len];
        let whole = build(&envelope, &packet, &payload).len();
        for short in 0..whole {
            prop_assert_eq!(write_frame(&mut vec![0; short], &envelope, &packet, &payload), None);
        }
    }

    #[test]
    fn any_header_bytes_make_an_icrc(bytes in prop::collection::vec(any::<u8>(), 0..100), more in any::<[u8; 8]>()) {
        Icrc::new(&bytes).update(&more).clone().finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn bytes_taken_on_trust_are_never_read_behind_their_end(
        bytes in prop::collection::vec(any::<u8>(), 0..140), kind in 0usize..4, len in 0usize..300,
    ) {
        let mut bytes = bytes;
        if let (Some(at), Some(kind)) = (bytes.get_mut(12..14), [0x0800u16, 0x86dd, 0x8100].get(kind)) {
            at.copy_from_slice(&kind.to_be_bytes());
        }
        if let Ok(h) = Headers::of_built(&bytes, len) {
            read_all(&h);
            prop_assert!(h.payload_start() <= bytes.len() && h.payload_start() + 4 <= len);
        }
    }
}

#[test]
fn a_packet_longer_than_ip_can_say_is_not_built() {
    let v4 = Envelope::new([2; 6], [4; 6], IpPair::V4 { src: [127, 0, 0, 1], dst: [127, 0, 0, 2] });
    let mut out = vec![0; 0x2_0000];
    assert_eq!(write_headers(&mut out, &v4, &Packet::default(), 0x1_0000), None);
    assert_eq!(write_headers(&mut out, &v4, &Packet::default(), usize::MAX), None);
    assert_eq!(write_headers(&mut out, &v4, &Packet::default(), 4096), Some(14 + 20 + 8 + 12));
}

#[test]
fn what_is_not_rocev2_is_named() {
    let v4 = Envelope::new([2; 6], [4; 6], IpPair::V4 { src: [127, 0, 0, 1], dst: [127, 0, 0, 2] });
    let good = build(&v4, &Packet::default(), &[]);
    let with = |changes: &[(usize, u8)], fix_checksum: bool| {
        let mut frame = good.clone();
        for (at, value) in changes {
            frame[*at] = *value;
        }
        if fix_checksum {
            let mut ip = Ipv4::read(&frame[14..]);
            let sum = ip.expected_checksum();
            ip.set().checksum(sum);
            frame[14..34].copy_from_slice(ip.bytes());
        }
        Headers::parse(&frame).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(&[(12, 0x88), (13, 0x08)], false), ParseError::NotIp(0x8808));
    assert_eq!(with(&[(14, 0x46)], true), ParseError::BadIp);
    assert_eq!(with(&[(20, 0x20)], true), ParseError::BadIp);
    assert_eq!(with(&[(22, 9)], false), ParseError::BadIpChecksum);
    assert_eq!(with(&[(23, 6)], true), ParseError::NotUdp(6));
    assert_eq!(with(&[(37, 0x35)], false), ParseError::NotRoce(0x1235));
    assert_eq!(with(&[(39, 0)], false), ParseError::BadUdpLength);
    assert_eq!(Headers::parse(&[]).map(|_| ()).unwrap_err(), ParseError::Truncated);
}

#[test]
fn a_wrong_pad_count_leaves_no_payload() {
    let v4 = Envelope::new([2; 6], [4; 6], IpPair::V4 { src: [127, 0, 0, 1], dst: [127, 0, 0, 2] });
    let mut frame = build(&v4, &Packet::default(), &[]);
    frame[14 + 20 + 8 + 1] |= 0x30;
    let h = Headers::parse(&frame).unwrap();
    assert_eq!((h.bth().pad_count(), h.payload_range(), h.payload()), (3, None, None));
    assert!(h.padded_range().is_empty());
}

#[test]
fn gids_and_addresses_stand_for_each_other() {
    let (a, b) = (gid_of_v4([127, 0, 0, 1]), gid_of_v4([127, 0, 0, 2]));
    let pair = IpPair::from_gids(a, b);
    assert_eq!(pair, IpPair::V4 { src: [127, 0, 0, 1], dst: [127, 0, 0, 2] });
    assert_eq!(pair.gids(), (a, b));
    let mut link_local = [0; 16];
    (link_local[0], link_local[1]) = (0xfe, 0x80);
    assert_eq!(IpPair::from_gids(link_local, b), IpPair::V6 { src: link_local, dst: b });
    assert_eq!(v4_of_gid(&link_local), None);
}
