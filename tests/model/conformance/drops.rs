//! Packets that are silently dropped and counted.

use super::common::*;
use devmodel::state::Counters;
use hwspec::handle::Qpn;

fn write(to: Mr) -> Pkt {
    write_of(to, EXPECTS, 1)
}

/// Checks that the peer's frame is dropped without an answer or an effect, that `counter` increases, and that the QP still works.
#[track_caller]
fn assert_dropped(counter: Counters, frame: impl FnOnce(&mut Bed, Peer, Mr) -> Vec<u8>) {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    let frame = frame(&mut bed, peer, to);
    let before = bed.counter(1, counter);
    bed.inject(&frame);
    assert_eq!(brief(&bed.answers()), []);
    assert_eq!(bed.bytes(to), [0; 64]);
    assert_eq!(bed.counter(1, counter), before + 1, "{counter:?}");
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(to))), (ACK, EXPECTS, 1));
}

/// Row 39: a packet with a P_Key that does not match is dropped and counted.
#[test]
fn row_39_pkey_mismatch_is_dropped() {
    assert_dropped(Counters::RxDroppedPkey, |_, peer, to| peer.frame(&write(to).bth(|b| b.pkey(0x8001))));
}

/// Row 39: its sender fails with RETRY_EXC.
#[test]
fn row_39_sender_with_another_pkey_runs_out_of_retries() {
    let (mut bed, [a, _], [from, to]) = ends(64);
    bed.wire().plan(Filter::from(1), 0, u32::MAX, Fault::Pkey(0x8001));
    bed.post(a, &Wr::write(from.sge(), to));
    assert!(bed.advance_until(100 * S, |b| b.has_completion(a.send_cq)));
    assert_requester_failed(&mut bed, a, CqeSyndrome::TransportRetryExcErr);
    assert_eq!(bed.counter(2, Counters::RxDroppedPkey), 8);
}

/// Row 41: a bad ICRC.
#[test]
fn row_41_bad_icrc_is_dropped() {
    // A damaged ICRC, and a damaged payload.
    for from_the_end in [1, 8] {
        assert_dropped(Counters::RxIcrcErrors, |_, peer, to| {
            let mut frame = peer.frame(&write(to));
            let at = frame.len() - from_the_end;
            frame[at] ^= 1;
            frame
        });
    }
}

/// Row 41: a nonzero transport version.
#[test]
fn row_41_transport_version_is_dropped() {
    assert_dropped(Counters::RxDroppedQp, |_, peer, to| peer.frame(&write(to).bth(|b| b.tver(1))));
}

/// Row 41: a QP number that does not exist, or that belongs to another function.
#[test]
fn row_41_unknown_qp_is_dropped() {
    let to_qp = |peer: Peer, to, qpn| peer.frame(&write(to).bth(|b| b.dest_qp(Qpn(qpn))));
    assert_dropped(Counters::RxDroppedQp, |_, peer, to| to_qp(peer, to, 0x12_3456));
    assert_dropped(Counters::RxDroppedQp, |bed, peer, to| to_qp(peer, to, bed.qp(2).qpn));
}

/// Row 41: an opcode of another transport.
#[test]
fn row_41_wrong_transport_is_dropped() {
    for opcode in [BthOpcode::UcWriteOnly, BthOpcode::UdSendOnly, BthOpcode::XrcWriteOnly] {
        assert_dropped(Counters::RxDroppedQp, |_, peer, to| {
            peer.frame(&Pkt::new(opcode, EXPECTS).reth(to.va, to.key, 8).payload(&[1; 8]))
        });
    }
}

/// Row 41: a QP that is not in RTR or RTS.
#[test]
fn row_41_qp_that_does_not_receive_drops() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    for step in 0..3 {
        match step {
            0 => bed.to_err(peer.qp).expect("2ERR_QP"),
            1 => bed.to_reset(peer.qp).expect("2RST_QP"),
            _ => bed.to_init(peer.qp, &peer.path).expect("RST2INIT_QP"),
        }
        let before = bed.counter(1, Counters::RxDroppedQp);
        assert_eq!(brief(&bed.from_peer(peer, &write(to))), []);
        assert_eq!(bed.counter(1, Counters::RxDroppedQp), before + 1);
    }
    assert_eq!(bed.bytes(to), [0; 64]);
}

/// Row 41: frames that are not RoCEv2 packets.
#[test]
fn row_41_malformed_frames_are_dropped() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    let good = peer.frame(&write(to));
    for cut in 6..good.len() {
        bed.inject(&good[..cut]);
        assert_eq!(brief(&bed.answers()), [], "cut at {cut}");
    }
    assert_eq!(bed.bytes(to), [0; 64]);
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(to))), (ACK, EXPECTS, 1));
}

/// If the receiver cannot copy a packet's payload from its sender, the packet counts as lost, and its effects so far are undone: a
/// retransmission is received like a new packet.
#[test]
fn row_41_packet_without_its_payload_counts_as_lost() {
    let mut bed = Bed::cx5();
    // Longer than packets that carry their payload by value.
    const MTU: usize = 1024;
    let (a, b) = bed.pair(Path { mtu: MTU as u32, ..path() });
    bed.unwatched();
    let (from, to) = (bed.mr(1, 4 * MTU, Access::LOCAL), bed.mr(2, 4 * MTU, Access::ALL));
    let data = bed.pattern(from, 1);
    for wr in [Wr::send(from.sge()), Wr::write(from.sge(), to)] {
        bed.post_recv(b, &[to.sge()]);
        bed.fill(to, &[0; 4 * MTU]);
        for range in [0, MTU, 3 * MTU].map(|at| from.at + at as u64..from.at + (at + 300) as u64) {
            bed.memory.uncopied = vec![range];
            bed.queue(a, &wr);
            bed.publish(a);
            bed.doorbell(a);
            bed.run();
            assert!(!bed.has_completion(a.send_cq) && !bed.has_completion(b.recv_cq));
            bed.memory.uncopied.clear();
            assert!(bed.advance_until(S, |b| b.has_completion(a.send_cq)));
            assert!(bed.one(a.send_cq).is_ok());
            assert_eq!(bed.bytes(to), data);
            if wr.op == Op::Send {
                assert_eq!(bed.one(b.recv_cq).byte_len, 4 * MTU as u32);
                bed.post_recv(b, &[to.sge()]);
            }
        }
    }
}
