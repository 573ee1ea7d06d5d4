//! Packets that did not come over the connection they are addressed to (IBTA 9.6.1.5).

use super::common::*;
use devmodel::{identity, state::Counters};
use hwspec::{
    context::ServiceType,
    wire::{Envelope, Headers, IpPair, Syndrome, Vlan, ip::gid_of_v4},
};

/// A connection, and the state that a forged packet must not change.
struct Stage {
    bed: Bed,
    peer: Peer,
    to: Mr,
}

fn stage(service: ServiceType) -> Stage {
    let mut bed = Bed::cx5();
    let peer = bed.foreign_with(1, QpSpec { service, ..QpSpec::default() }, path());
    let to = bed.mr(1, 64, Access::ALL);
    Stage { bed, peer, to }
}

fn write(service: ServiceType, to: Mr) -> Pkt {
    let opcode = if service == ServiceType::Uc { BthOpcode::UcWriteOnly } else { BthOpcode::RcWriteOnly };
    Pkt::new(opcode, EXPECTS).reth(to.va, to.key, 8).payload(&[1; 8]).ack_req()
}

fn tagged(vid: u16) -> Option<Vlan> {
    Some(Vlan::with(|s| s.vid(vid)))
}

impl Stage {
    /// Checks that a WRITE in this envelope is dropped and counted, and that the connection's own WRITE is executed after it.
    #[track_caller]
    fn assert_dropped(mut self, service: ServiceType, envelope: &Envelope) {
        let before = self.bed.counter(1, Counters::RxDroppedQp);
        let pkt = write(service, self.to);
        self.bed.inject(&self.peer.frame_in(&pkt, envelope));
        assert_eq!(brief(&self.bed.answers()), []);
        assert_eq!(self.bed.bytes(self.to), [0; 64]);
        assert_eq!(self.bed.counter(1, Counters::RxDroppedQp), before + 1);
        assert_eq!(self.bed.qp_state(self.peer.qp), QpState::Rts);
        self.assert_taken(service, &self.peer.envelope());
    }

    /// Checks that a WRITE in this envelope is executed.
    #[track_caller]
    fn assert_taken(&mut self, service: ServiceType, envelope: &Envelope) {
        let pkt = write(service, self.to);
        self.bed.inject(&self.peer.frame_in(&pkt, envelope));
        assert_eq!(self.bed.bytes(self.to)[..8], [1; 8]);
    }
}

/// Row 63: a source address other than that of the QP's peer, and a destination address other than the QP's own, even if it belongs to the
/// function.
#[test]
fn row_63_other_addresses_are_dropped() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let own = [127, 0, 0, 2];
        let good = stage(service).peer.envelope();
        let IpPair::V4 { src, dst } = good.addresses else { panic!("{:?}", good.addresses) };
        assert_eq!(dst, own);
        let second = [192, 0, 2, 7];
        let v6 = |src, dst| IpPair::V6 { src, dst };
        for addresses in [
            IpPair::V4 { src: [10, 1, 2, 4], dst },
            IpPair::V4 { src: [127, 0, 0, 3], dst },
            IpPair::V4 { src: own, dst },
            IpPair::V4 { src, dst: second },
            IpPair::V4 { src: dst, dst: src },
            v6(gid_of_v4(src), identity::link_local_gid(0, 1)),
            v6(identity::link_local_gid(0, 2), identity::link_local_gid(0, 1)),
            v6(identity::link_local_gid(0, 2), gid_of_v4(dst)),
        ] {
            let mut s = stage(service);
            s.bed.set_gid(1, 2, gid_of_v4(second)).expect("SET_ROCE_ADDRESS");
            s.assert_dropped(service, &Envelope { addresses, ..good });
        }
    }
}

/// Row 63: MAC, UDP source port, DSCP and hop limit are not checked, because the network or the sender chooses them.
#[test]
fn row_63_what_routers_and_senders_choose_is_not_asked_for() {
    let good = stage(ServiceType::Rc).peer.envelope();
    for envelope in [
        Envelope { src_mac: [2, 9, 9, 9, 9, 9], ..good },
        Envelope { src_port: 0xf00d, ..good },
        Envelope { traffic_class: 0x68, hop_limit: 3, ..good },
        // A priority tag.
        Envelope { vlan: tagged(0), ..good },
    ] {
        stage(ServiceType::Rc).assert_taken(ServiceType::Rc, &envelope);
    }
}

/// Row 63: a GID in a VLAN is reachable only in that VLAN, any other GID only untagged.
#[test]
fn row_63_other_vlans_are_dropped() {
    let good = stage(ServiceType::Rc).peer.envelope();
    stage(ServiceType::Rc).assert_dropped(ServiceType::Rc, &Envelope { vlan: tagged(5), ..good });
    for vlan in [None, tagged(0), tagged(6)] {
        let mut s = stage(ServiceType::Rc);
        s.bed.set_gid_in(1, GID_IPV4, gid_v4(1), Some(5)).expect("SET_ROCE_ADDRESS");
        let pkt = write(ServiceType::Rc, s.to);
        s.bed.inject(&s.peer.frame_in(&pkt, &Envelope { vlan, ..good }));
        assert_eq!((brief(&s.bed.answers()), s.bed.bytes(s.to)), (vec![], vec![0; 64]), "{vlan:?}");
        s.assert_taken(ServiceType::Rc, &Envelope { vlan: tagged(5), ..good });
    }
}

/// Row 63: the check also applies to responses: only the peer can acknowledge a request or end it with a NAK.
#[test]
fn row_63_forged_answers_are_dropped() {
    for answer in [ack(SENDS, 1), nak(NAK_ACCESS, SENDS, 0), nak(Syndrome::RnrNak(31), SENDS, 0)] {
        let mut s = stage(ServiceType::Rc);
        let from = s.bed.mr(1, 64, Access::LOCAL);
        s.bed.post(s.peer.qp, &write_to_peer(from.sge()));
        s.bed.answers();
        let addresses = IpPair::V4 { src: [10, 1, 2, 4], dst: [127, 0, 0, 2] };
        s.bed.inject(&s.peer.frame_in(&answer, &Envelope { addresses, ..s.peer.envelope() }));
        assert_eq!(s.bed.completions(s.peer.qp.send_cq), []);
        assert_eq!(s.bed.qp_state(s.peer.qp), QpState::Rts);
        s.bed.from_peer(s.peer, &ack(SENDS, 1));
        assert!(s.bed.one(s.peer.qp.send_cq).is_ok());
    }
}

/// Connects a pair on functions 1 and 2. A QP of function 3, created by an owner with full knowledge of the pair, connects to the pair's
/// responder. Checks that its writes are dropped, and the error it gets.
#[track_caller]
fn assert_third_is_kept_out(mut bed: Bed, path: Path, watched: bool) {
    let (a, b) = bed.pair(path);
    let third = bed.qp(3);
    // The path that the responder expects of the first.
    let forged = bed.path_to(b, Path { sq_psn: path.sq_psn, retry_count: 2, ..path });
    bed.ready(third, &forged);
    if !watched {
        bed.unwatched();
    }
    let (from, to) = (bed.mr(1, 5000, Access::LOCAL), bed.mr(2, 5000, Access::ALL));
    let (bad, data) = (bed.mr(3, 5000, Access::LOCAL), bed.pattern(from, 1));
    bed.fill(bad, &[0xee; 5000]);
    // Payload by value, and by reference.
    for len in [8, 5000] {
        bed.post(third, &Wr::write(bad.part(0, len), to));
        bed.post(a, &Wr::write(from.part(0, len), to));
        assert!(bed.one(a.send_cq).is_ok(), "{len} bytes");
        assert_eq!(bed.bytes(to)[..len as usize], data[..len as usize]);
    }
    assert!(bed.advance_until(100 * S, |bed| bed.has_completion(third.send_cq)));
    assert_eq!(bed.completions(third.send_cq)[0].error, Some(CqeSyndrome::TransportRetryExcErr));
    assert!(bed.counter(2, Counters::RxDroppedQp) > 0);
    assert_eq!((bed.qp_state(a), bed.qp_state(b)), (QpState::Rts, QpState::Rts));
    bed.done(a, &Wr::write(from.part(0, 100), to));
}

/// Row 63: a QP of another function cannot enter a connection, on an observed wire or within the region.
#[test]
fn row_63_another_function_is_kept_out() {
    for watched in [true, false] {
        assert_third_is_kept_out(Bed::cx5(), path(), watched);
        for grh in [false, true] {
            assert_third_is_kept_out(Bed::infiniband(), Path { grh, ..path() }, watched);
        }
    }
}

/// Row 63: neither can a raw frame of another function with its own source address.
#[test]
fn row_63_a_raw_frame_from_another_address_is_kept_out() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    let mut nic = bed.open_nic(3);
    let seen = Peer { qp: b, path: path() };
    let pkt = Pkt::new(BthOpcode::RcWriteOnly, path().sq_psn).reth(to.va, to.key, 8).payload(&[0xee; 8]);
    let addresses = IpPair::V4 { src: [127, 0, 0, 4], dst: [127, 0, 0, 3] };
    let frame = seen.frame_in(&pkt, &Envelope { addresses, ..seen.envelope() });
    bed.send_frame(&mut nic, &frame, Send { inline: 18, ..Send::default() });
    bed.run();
    assert_eq!(bed.bytes(to), [0; 64]);
    bed.done(a, &Wr::write(from.sge(), to));
}

/// Row 63: on InfiniBand a packet must come from the peer's LID, and must have a GRH with both GIDs if the connection has one.
#[test]
fn row_63_infiniband_routes_are_compared() {
    for grh in [false, true] {
        let mut bed = Bed::infiniband();
        let (a, b) = bed.pair(Path { grh, ..path() });
        let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
        bed.pattern(from, 9);
        bed.post(a, &Wr::write(from.sge(), to));
        let sent = bed.take_frames().into_iter().find(|f| f.from == 1).expect("the request").bytes;
        assert!(bed.one(a.send_cq).is_ok());
        bed.fill(to, &[0; 64]);
        // The next packet of the connection, with a change before the BTH.
        let forge = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = sent.clone();
            rewrite(&mut frame, |bth| {
                let next = bth.psn().add(1);
                bth.set().psn(next);
            });
            change(&mut frame);
            reseal(&mut frame);
            frame
        };
        const SLID: usize = 6;
        const SGID: usize = 8 + 8;
        const DGID: usize = SGID + 16;
        let mut forged = vec![forge(&|frame| frame[SLID + 1] ^= 1)];
        if grh {
            forged.push(forge(&|frame| frame[SGID + 15] ^= 1));
            forged.push(forge(&|frame| frame[DGID + 15] ^= 1));
            forged.push(forge(&without_grh));
        }
        for frame in &forged {
            let before = bed.counter(2, Counters::RxDroppedQp);
            bed.inject(frame);
            assert_eq!(bed.counter(2, Counters::RxDroppedQp), before + 1, "GRH {grh}");
        }
        assert_eq!((bed.bytes(to), bed.qp_state(b)), (vec![0; 64], QpState::Rts));
        bed.inject(&forge(&|_| {}));
        assert_eq!(bed.bytes(to), bed.bytes(from));
    }
}

/// Removes the GRH from a frame.
fn without_grh(frame: &mut Vec<u8>) {
    frame.drain(8..48);
    // LNH, and the length in words.
    frame[1] = frame[1] & !3 | 2;
    let words = u16::from_be_bytes([frame[4], frame[5]]) - 10;
    frame[4..6].copy_from_slice(&words.to_be_bytes());
    assert!(Headers::parse_route(frame, frame.len()).is_ok());
}

/// Row 63: a foreign source cannot choose the SRQ of an XRC target either.
#[test]
fn row_63_xrc_targets_are_connected_too() {
    let mut bed = Bed::cx5();
    let (xrcd, cq) = (bed.xrcd(1), bed.cq(1));
    let srq = bed.xrc_srq(1, 4, xrcd, cq);
    let spec = QpSpec { service: ServiceType::Xrc, srq: Some(srq), xrcd, no_sq: true, ..QpSpec::default() };
    let peer = bed.foreign_with(1, spec, path());
    let to = bed.mr(1, 64, Access::LOCAL);
    bed.post_srq(srq, &[to.sge()]);
    let addresses = IpPair::V4 { src: [10, 1, 2, 4], dst: [127, 0, 0, 2] };
    let other = Envelope { addresses, ..peer.envelope() };
    let send = |srqn| Pkt::new(BthOpcode::XrcSendOnly, EXPECTS).xrceth(srqn).payload(&[7; 16]).ack_req();
    // One that would be executed, and one that would get a NAK.
    for srqn in [srq.srqn, srq.srqn + 1] {
        bed.inject(&peer.frame_in(&send(srqn), &other));
        assert_eq!(brief(&bed.answers()), []);
        assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    }
    assert_eq!(bed.bytes(to), [0; 64]);
    bed.from_peer(peer, &send(srq.srqn));
    assert_eq!(bed.bytes(to)[..16], [7; 16]);
}
