//! Datagrams: UD and the special QPs.

use super::common::*;
use devmodel::{host::Party, state::Counters};
use hwspec::{
    context::ServiceType,
    cqe::RoceL3Type,
    handle::Qpn,
    wire::{Deth, IpPair, pad},
};

const QKEY: u32 = 0x1111_2222;
/// Bytes before the payload of every received datagram.
const GRH: u32 = 40;

/// Returns a datagram QP and memory on each of functions 1 and 2.
fn two(mut bed: Bed) -> (Bed, Qp, Qp, Mr, Mr) {
    let (a, b) = (bed.datagram(1, ServiceType::Ud, QKEY), bed.datagram(2, ServiceType::Ud, QKEY));
    let (from, to) = (bed.mr(1, 8192, Access::LOCAL), bed.mr(2, 8192, Access::LOCAL));
    (bed, a, b, from, to)
}

/// Row 54: a datagram arrives after 40 bytes, the last 20 of which are its IPv4 header, and its completion identifies the sender.
#[test]
fn row_54_datagram_arrives_behind_its_ip_header() {
    let (mut bed, a, b, from, to) = two(Bed::cx5());
    let data = bed.pattern(from, 7);
    for len in [0u32, 1, 255, 300, 1024, 4096] {
        bed.fill(to, &[0xee; 8192]);
        bed.post_recv(b, &[to.part(0, 17), to.part(100, 8000)]);
        let mut wr = Wr::new(Op::Send, &[from.part(0, len)]).to(bed.av(b, QKEY));
        if len == 0 {
            wr.sges.clear();
        }
        let sent = bed.execute(a, &wr);
        assert_eq!((sent.opcode, sent.error), (CqeOpcode::Req, None), "{len} bytes");
        let cqe = bed.poll_raw(b.recv_cq).expect("a completion");
        assert_eq!(cqe.byte_cnt(), len + GRH);
        assert_eq!((cqe.opcode(), cqe.rqpn().0, cqe.qpn().0), (CqeOpcode::RespSend, a.qpn, b.qpn));
        assert_eq!((cqe.grh(), cqe.roce_l3_type()), (1, RoceL3Type::Ipv4));
        assert_eq!(cqe.imm_inval_pkey() & 0xffff, 0xffff, "P_Key of the packet");
        let got = bed.bytes(to);
        let got = [&got[..17], &got[100..100 + 23 + len as usize]].concat();
        assert_eq!(got[40..], data[..len as usize], "{len} bytes");
        assert_eq!(got[20], 0x45, "an IPv4 header");
        assert_eq!((&got[32..36], &got[36..40]), (&[127, 0, 0, 2][..], &[127, 0, 0, 3][..]));
    }
}

/// Row 54: over IPv6 the 40 bytes are the whole header.
#[test]
fn row_54_datagram_over_ipv6() {
    let (mut bed, a, b, from, to) = two(Bed::cx5());
    bed.post_recv(b, &[to.sge()]);
    let gid = devmodel::identity::link_local_gid(0, 2);
    let av = Av { sgid_index: GID_LINK_LOCAL, dgid: gid, ..bed.av(b, QKEY) };
    bed.post(a, &Wr::new(Op::SendImm(0xfeed), &[from.part(0, 10)]).to(av));
    let cqe = bed.poll_raw(b.recv_cq).expect("a completion");
    assert_eq!((cqe.opcode(), cqe.imm_inval_pkey()), (CqeOpcode::RespSendImm, 0xfeed));
    assert_eq!(cqe.roce_l3_type(), RoceL3Type::Ipv6);
    assert_eq!(bed.bytes(to)[24..40], gid);
    let frame = bed.take_frames().pop().expect("a frame");
    let h = frame.headers();
    assert_eq!((h.udp().src_port(), h.bth().ack_req()), (av.sport, false));
    assert!(matches!(h.addresses(), IpPair::V6 { .. }));
}

/// Row 54: a datagram that does not fit a packet is refused when posted; the send queue stops with an error completion (row 48), the
/// receive queue continues.
#[test]
fn row_48_a_refused_datagram_stops_sending_only() {
    let (mut bed, a, b, from, to) = two(Bed::cx5());
    let av = bed.av(b, QKEY);
    let small = Wr::new(Op::Send, &[from.part(0, 8)]).to(av);
    bed.post_all(a, &[Wr::new(Op::Send, &[from.part(0, 4097)]).to(av), small.clone()]);
    let all = bed.completions(a.send_cq);
    let errors: Vec<_> = all.iter().map(|wc| wc.error).collect();
    assert_eq!(errors, [Some(CqeSyndrome::LocalLengthErr), Some(CqeSyndrome::WrFlushErr)]);
    assert_eq!(bed.qp_state(a), QpState::SqErr);
    assert_eq!(bed.take_frames(), []);
    // Posts are still flushed.
    assert_eq!(bed.execute(a, &small).error, Some(CqeSyndrome::WrFlushErr));
    // The receive queue still works.
    let back = bed.mr(1, 256, Access::LOCAL);
    bed.post_recv(a, &[back.sge()]);
    assert_eq!(bed.execute(b, &Wr::new(Op::Send, &[to.part(0, 8)]).to(bed.av(a, QKEY))).error, None);
    assert_eq!(bed.one(a.recv_cq).byte_len, 8 + GRH);
    bed.sqerr_to_rts(a).expect("SQERR2RTS_QP");
    bed.post_recv(b, &[to.sge()]);
    bed.done(a, &small);
    assert!(bed.one(b.recv_cq).is_ok());
}

/// Row 40: a datagram with a wrong Q_Key is silently dropped and counted; a request with the top bit set uses the sender's own Q_Key.
#[test]
fn row_40_wrong_qkey_is_dropped_and_counted() {
    let (mut bed, a, b, from, to) = two(Bed::cx5());
    bed.post_recv(b, &[to.sge()]);
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 8)]).to(bed.av(b, QKEY + 1)));
    assert!(bed.one(a.send_cq).is_ok(), "the sender does not know");
    assert_eq!(bed.completions(b.recv_cq), []);
    assert_eq!(bed.counter(2, Counters::RxDroppedQkey), 1);
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 8)]).to(bed.av(b, 0x8000_0000)));
    assert!(bed.one(b.recv_cq).is_ok());
    let frame = bed.take_frames().pop().expect("a frame");
    assert_eq!(frame.headers().deth().map(|d| (d.qkey(), d.src_qp().0)), Some((QKEY, a.qpn)));
}

/// The program that posted the receive died a moment ago: the datagram is dropped and counted.
#[test]
fn a_datagram_to_memory_of_a_dead_program_is_dropped() {
    let (mut bed, a, b, from, _) = two(Bed::cx5());
    let pd = bed.state(2).pd;
    let to = bed.mr_with(2, 256, Access::LOCAL, pd, Some(Party(9)));
    bed.post_recv(b, &[to.sge()]);
    bed.kill(Party(9));
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 8)]).to(bed.av(b, QKEY)));
    assert!(bed.one(a.send_cq).is_ok());
    assert_eq!((bed.completions(b.recv_cq), bed.counter(2, Counters::RxMalformed)), (vec![], 1));
}

/// Row 54: a datagram is lost if there is no receive or it is too short; the profile decides if the QP stays as it is or fails.
#[test]
fn row_54_no_receive_and_a_short_one() {
    for bed in [Bed::cx5(), Bed::ibta()] {
        let (mut bed, a, b, from, to) = two(bed);
        let wr = Wr::new(Op::Send, &[from.part(0, 100)]).to(bed.av(b, QKEY));
        bed.post(a, &wr);
        assert_eq!(bed.counter(2, Counters::OutOfBuffer), 1);
        bed.post_recv(b, &[to.part(0, 139)]);
        bed.post(a, &wr);
        assert_eq!(bed.completions(a.send_cq).len(), 2);
        if bed.adapter.config().profile == devmodel::Conformance::Cx5 {
            assert_eq!(bed.one(b.recv_cq).error, Some(CqeSyndrome::LocalLengthErr));
            assert_eq!(bed.qp_state(b), QpState::Err);
            continue;
        }
        assert_eq!(bed.completions(b.recv_cq), [], "class D of IBTA 9.9.3.1");
        let short = Wr::new(Op::Send, &[from.part(0, 99)]).to(bed.av(b, QKEY));
        bed.post(a, &short);
        assert_eq!(bed.one(b.recv_cq).byte_len, 139, "the receive is still there");
    }
}

/// Row 41: a UD packet for a connected QP, an RC packet for a datagram QP, and a packet longer than the MTU are dropped.
#[test]
fn row_41_packets_of_another_transport_are_dropped() {
    let (mut bed, a, b, from, to) = two(Bed::cx5());
    let rc = bed.qp(2);
    bed.foreign_of(rc, Path::default());
    let dropped = bed.counter(2, Counters::RxDroppedQp);
    bed.post_recv(rc, &[to.sge()]);
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 8)]).to(Av { qpn: rc.qpn, ..bed.av(b, QKEY) }));
    bed.post_recv(b, &[to.sge()]);
    let peer = Peer { qp: b, path: Path::default() };
    for opcode in [BthOpcode::RcSendOnly, BthOpcode::RcAck, BthOpcode::UcSendOnly, BthOpcode::Other(0x66)] {
        bed.from_peer(peer, &Pkt::new(opcode, 0));
    }
    assert_eq!(bed.counter(2, Counters::RxDroppedQp), dropped + 5);
    let ud = |len| Pkt::new(BthOpcode::UdSendOnly, 0).deth(QKEY, 9).payload(&vec![1; len]);
    bed.from_peer(peer, &ud(4100));
    assert_eq!(bed.completions(b.recv_cq), []);
    bed.from_peer(peer, &ud(64));
    assert_eq!(bed.one(b.recv_cq).byte_len, 64 + GRH);
    assert_eq!(pad(64), 0);
}

/// Row 54: peers know QP1 by the number 1, whatever its row, and it receives packets sent to 1; its Q_Key is checked, that of QP0 is not.
#[test]
fn row_54_special_qps_have_numbers_of_their_own() {
    const GSI_QKEY: u32 = 0x8001_0000;
    let mut bed = Bed::cx5();
    let (a, b) = (bed.datagram(1, ServiceType::Qp1, GSI_QKEY), bed.datagram(2, ServiceType::Qp1, GSI_QKEY));
    let (from, to) = (bed.mr(1, 512, Access::LOCAL), bed.mr(2, 512, Access::LOCAL));
    assert!(a.qpn > 1 && b.qpn > 1);
    bed.post_recv(b, &[to.sge()]);
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 256)]).to(Av { qpn: 1, ..bed.av(b, GSI_QKEY) }));
    let cqe = bed.poll_raw(b.recv_cq).expect("a completion");
    assert_eq!((cqe.rqpn().0, cqe.qpn().0, cqe.byte_cnt()), (1, b.qpn, 256 + GRH));
    assert_eq!(cqe.imm_inval_pkey() & 0xffff, 0xffff);
    let frame = bed.take_frames().pop().expect("a frame");
    assert_eq!((frame.dest_qp().0, frame.headers().deth().map(|d| d.src_qp().0)), (1, Some(1)));
    // A UD QP that sends as QP1.
    let tx = bed.datagram_with(1, QpSpec { service: ServiceType::Ud, deth_sqpn: 1, ..QpSpec::default() }, 5);
    bed.post_recv(b, &[to.sge()]);
    bed.post(tx, &Wr::new(Op::Send, &[from.part(0, 8)]).to(Av { qpn: 1, ..bed.av(b, 0x1_0000) }));
    assert_eq!(bed.counter(2, Counters::RxDroppedQkey), 1, "not the Q_Key of QP1");
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 8)]).to(Av { qpn: 1, ..bed.av(b, GSI_QKEY) }));
    assert_eq!(bed.poll_raw(b.recv_cq).map(|cqe| cqe.rqpn()), Some(Qpn(1)));
    // A second one of the same user context is refused; the number is free again when the first is destroyed.
    let spec = QpSpec { service: ServiceType::Qp1, ..QpSpec::default() };
    assert!(bed.qp_with(2, spec).is_err());
    bed.destroy_qp(b).expect("DESTROY_QP");
    let dropped = bed.counter(2, Counters::RxDroppedQp);
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 8)]).to(Av { qpn: 1, ..bed.av(a, GSI_QKEY) }));
    bed.post(
        a,
        &Wr::new(Op::Send, &[from.part(0, 8)]).to(Av { qpn: 1, dmac: bed_mac(2), ..bed.av(a, GSI_QKEY) }),
    );
    assert_eq!(bed.counter(2, Counters::RxDroppedQp), dropped + 1, "no QP1 any more");
    bed.qp_with(2, spec).expect("CREATE_QP");
}

fn bed_mac(fid: u8) -> [u8; 6] {
    devmodel::identity::mac(0, fid)
}

/// Row 54: a message to a QP of the same function is looped back at once.
#[test]
fn row_54_datagrams_within_a_function() {
    let mut bed = Bed::cx5();
    let (a, b) = (bed.datagram(1, ServiceType::Ud, QKEY), bed.datagram(1, ServiceType::Ud, QKEY));
    let mr = bed.mr(1, 1024, Access::LOCAL);
    bed.post_recv(b, &[mr.part(512, 512)]);
    bed.post_recv(a, &[mr.part(512, 512)]);
    bed.done(a, &Wr::new(Op::Send, &[]).inline(b"to the neighbour").to(bed.av(b, QKEY)));
    assert_eq!(bed.one(b.recv_cq).byte_len, 16 + GRH);
    assert_eq!(&bed.bytes(mr)[552..568], b"to the neighbour");
    bed.post(a, &Wr::new(Op::Send, &[]).inline(b"me").to(bed.av(a, QKEY)));
    assert_eq!(bed.completions(a.recv_cq).len(), 2, "sent and received, on one CQ");
}

/// Row 54: a multicast reaches every member on every function, including the sender unless it blocks loopback, and no other QP.
#[test]
fn row_54_multicast_reaches_members_only() {
    let mut bed = Bed::cx5();
    let spec = QpSpec { service: ServiceType::Ud, ..QpSpec::default() };
    let (fids, mut qps) = ([1, 1, 2, 2, 3], Vec::new());
    for fid in fids {
        let (send_cq, recv_cq) = (Some(bed.cq_on(fid)), Some(bed.cq_on(fid)));
        qps.push(bed.datagram_with(fid, QpSpec { send_cq, recv_cq, ..spec }, QKEY));
    }
    let mrs: Vec<Mr> = fids.iter().map(|fid| bed.mr(*fid, 256, Access::LOCAL)).collect();
    let send = |bed: &mut Bed, from: usize, group: u8| -> Vec<usize> {
        for (qp, mr) in qps.iter().zip(&mrs) {
            bed.post_recv(*qp, &[mr.sge()]);
        }
        bed.post(qps[from], &Wr::new(Op::Send, &[]).inline(&[group]).to(Av::group(group, QKEY)));
        assert!(bed.one(qps[from].send_cq).is_ok());
        (0..qps.len()).filter(|i| !bed.completions(qps[*i].recv_cq).is_empty()).collect()
    };
    assert_eq!(send(&mut bed, 0, 7), [0usize; 0]);
    for i in [0, 1, 2, 4] {
        bed.attach(qps[i], Av::group_gid(7)).expect("ATTACH_TO_MCG");
    }
    bed.attach(qps[3], Av::group_gid(8)).expect("ATTACH_TO_MCG");
    assert_eq!(send(&mut bed, 0, 7), [0, 1, 2, 4]);
    assert_eq!(send(&mut bed, 3, 7), [0, 1, 2, 4]);
    assert_eq!(send(&mut bed, 4, 8), [3]);
    bed.detach(qps[1], Av::group_gid(7)).expect("DETACH_FROM_MCG");
    assert!(bed.detach(qps[1], Av::group_gid(7)).is_err());
    assert_eq!(send(&mut bed, 2, 7), [0, 2, 4]);
    bed.destroy_qp(qps[4]).expect("DESTROY_QP");
    let (send_cq, recv_cq) = (Some(bed.cq_on(1)), Some(bed.cq_on(1)));
    let quiet = bed.datagram_with(1, QpSpec { block_loopback: true, send_cq, recv_cq, ..spec }, QKEY);
    // It receives from others of its function and they receive from it, but it does not receive its own messages.
    bed.attach(quiet, Av::group_gid(7)).expect("ATTACH_TO_MCG");
    bed.post_recv(quiet, &[mrs[0].sge()]);
    bed.post(quiet, &Wr::new(Op::Send, &[]).inline(&[7]).to(Av::group(7, QKEY)));
    assert!(bed.has_completion(qps[0].recv_cq) && bed.has_completion(qps[2].recv_cq));
    assert!(!bed.has_completion(quiet.recv_cq));
    bed.post(qps[0], &Wr::new(Op::Send, &[]).inline(&[7]).to(Av::group(7, QKEY)));
    assert!(bed.has_completion(quiet.recv_cq));
    // Only datagram QPs may attach, and only to groups.
    assert!(bed.attach(qps[0], [0x20; 16]).is_err());
    let rc = bed.qp(1);
    assert!(bed.attach(rc, Av::group_gid(7)).is_err());
}

/// Row 50: datagram QPs take receives from an SRQ like others; a dropped datagram takes none.
#[test]
fn row_50_datagrams_from_a_shared_queue() {
    let mut bed = Bed::ibta().with_function(2);
    let srq = bed.srq(2, 3);
    let a = bed.datagram(1, ServiceType::Ud, QKEY);
    let b =
        bed.datagram_with(2, QpSpec { service: ServiceType::Ud, srq: Some(srq), ..QpSpec::default() }, QKEY);
    let (from, to) = (bed.mr(1, 512, Access::LOCAL), bed.mr(2, 512, Access::LOCAL));
    bed.post_srq(srq, &[to.part(0, 60)]);
    for round in 0..20 {
        bed.post(a, &Wr::new(Op::Send, &[from.part(0, 21)]).to(bed.av(b, QKEY)));
        assert_eq!(bed.completions(b.recv_cq), [], "too long, round {round}");
        bed.post(a, &Wr::new(Op::Send, &[from.part(0, 20)]).to(bed.av(b, QKEY)));
        assert_eq!(bed.one(b.recv_cq).byte_len, 60);
        bed.post_srq(srq, &[to.part(0, 60)]);
        bed.completions(a.send_cq);
    }
}

/// The DETH is between BTH and payload.
#[test]
fn row_54_deth_follows_the_bth() {
    let (mut bed, a, b, from, _) = two(Bed::cx5());
    bed.post(a, &Wr::new(Op::Send, &[from.part(0, 4)]).to(bed.av(b, QKEY)));
    let frame = bed.take_frames().pop().expect("a frame");
    let at = frame.headers().payload_start() - Deth::SIZE;
    let expected = [QKEY.to_be_bytes(), a.qpn.to_be_bytes()].concat();
    assert_eq!(frame.bytes[at..at + Deth::SIZE], expected);
}
