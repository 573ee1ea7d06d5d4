//! Acknowledgements: when they are sent and which requests they complete.

use super::common::*;

/// Row 11: a request with AckReq is acknowledged with its PSN or a later one.
#[test]
fn row_11_ack_req_is_answered() {
    let (mut bed, peer, to) = foreign(4 * MTU, Access::ALL);
    let mut packets = write_message(to, EXPECTS, &[7; 4 * MTU]);
    // Also in the middle of a message.
    packets[1] = packets[1].clone().ack_req();
    let answers: Vec<_> = packets.iter().map(|pkt| bed.from_peer(peer, pkt)).collect();
    assert_eq!(acknowledgement(&answers[1]), (ACK, EXPECTS + 1, 0), "the message is not complete: MSN 0");
    assert_eq!(acknowledgement(&answers[3]), (ACK, EXPECTS + 3, 1));
}

/// Row 11: ACKs may coalesce, but the last AckReq is covered.
#[test]
fn row_11_coalesced_acks_cover_the_last_request() {
    let (mut bed, [a, _], [from, to]) = ends(64);
    bed.post_all(a, &vec![Wr::write(from.sge(), to); 20]);
    assert_eq!(bed.completions(a.send_cq).len(), 20);
    let frames = bed.take_frames();
    let asked = frames.iter().filter(|f| f.headers().bth().ack_req()).map(|f| f.psn()).max();
    let acked = frames.iter().filter(|f| f.opcode() == BthOpcode::RcAck).map(|f| f.psn()).max();
    assert_eq!(asked, Some(SENDS + 19));
    assert_eq!(acked, asked);
}

/// Row 12: the ACK of a PSN completes all WRITEs and SENDs up to it, in order.
#[test]
fn row_12_ack_completes_all_up_to_its_psn_in_order() {
    let (mut bed, peer, from) = foreign(3 * MTU, Access::LOCAL);
    let wrs = [
        write_to_peer(from.part(0, 8)),
        Wr::send(from.sge()),
        write_to_peer(from.part(0, 2 * MTU as u32)),
        Wr::send(from.part(0, 1)),
    ];
    let posted = bed.post_all(peer.qp, &wrs);
    // PSNs: 1, 3, 2 and 1 packets.
    assert_eq!(bed.answers().last().map(|f| f.psn()), Some(SENDS + 6));
    bed.from_peer(peer, &ack(SENDS + 3, 2));
    let done: Vec<u16> = bed.completions(peer.qp.send_cq).iter().map(|wc| wc.wqe).collect();
    assert_eq!(done, posted[..2]);
    // In the middle of the third message, which it does not complete.
    bed.from_peer(peer, &ack(SENDS + 4, 2));
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    bed.from_peer(peer, &ack(SENDS + 6, 4));
    let done: Vec<u16> = bed.completions(peer.qp.send_cq).iter().map(|wc| wc.wqe).collect();
    assert_eq!(done, posted[2..]);
}

/// Row 13: an ACK past an unanswered READ is an implied NAK: the READ is requested again and nothing completes.
#[test]
fn row_13_ack_past_an_unanswered_read_is_an_implied_nak() {
    let (mut bed, peer, mr) = foreign(2 * MTU, Access::LOCAL);
    bed.post_all(peer.qp, &[read_from_peer(mr.sge()), write_to_peer(mr.part(0, 8))]);
    assert_eq!(
        brief(&bed.answers()),
        [(BthOpcode::RcReadRequest, SENDS), (BthOpcode::RcWriteOnly, SENDS + 2)]
    );
    let again = bed.from_peer(peer, &ack(SENDS + 2, 2));
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    assert_eq!(again.first().map(|f| (f.opcode(), f.psn())), Some((BthOpcode::RcReadRequest, SENDS)));
}

/// Row 13: the same with an atomic.
#[test]
fn row_13_ack_past_an_unanswered_atomic_is_an_implied_nak() {
    let (mut bed, peer, mr) = foreign(64, Access::LOCAL);
    bed.post_all(peer.qp, &[fetch_add_at_peer(mr.part(0, 8), 1), write_to_peer(mr.part(0, 8))]);
    assert_eq!(brief(&bed.answers()), [(BthOpcode::RcFetchAdd, SENDS), (BthOpcode::RcWriteOnly, SENDS + 1)]);
    let again = bed.from_peer(peer, &ack(SENDS + 1, 2));
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    assert_eq!(again.first().map(|f| (f.opcode(), f.psn())), Some((BthOpcode::RcFetchAdd, SENDS)));
    // The late response completes the atomic; the acknowledgement then completes the WRITE.
    bed.from_peer(peer, &Pkt::new(BthOpcode::RcAtomicAck, SENDS).aeth(ACK, 1).atomic_ack(5));
    bed.from_peer(peer, &ack(SENDS + 1, 2));
    assert_eq!(bed.completions(peer.qp.send_cq).len(), 2);
}

/// Row 14: the MSN counts messages, not packets, of every kind.
#[test]
fn row_14_msn_counts_messages() {
    let (mut bed, peer, mr) = foreign(4 * MTU, Access::ALL);
    bed.post_recv(peer.qp, &[mr.sge()]);
    let mut psn = EXPECTS;
    let mut msns = Vec::new();
    let write = write_message(mr, psn, &[1; 3 * MTU]);
    psn += 3;
    let send = message(SEND, psn, &[2; 2 * MTU]);
    psn += 2;
    let read = vec![read_of(mr, psn, 0, 2 * MTU)];
    psn += 2;
    let atomic = vec![Pkt::new(BthOpcode::RcFetchAdd, psn).atomic(mr.va, mr.key, 1, 0)];
    for packets in [write, send, read, atomic] {
        let answers: Vec<Captured> = packets.iter().flat_map(|pkt| bed.from_peer(peer, pkt)).collect();
        msns.push(answers.last().and_then(|f| f.msn()));
    }
    assert_eq!(msns, [Some(1), Some(2), Some(3), Some(4)]);
}

/// Row 58: MigReq is 1 in all packets sent if path migration is not used.
#[test]
fn row_58_mig_req_is_set_in_every_packet() {
    let (mut bed, [a, b], [x, y]) = ends(3 * MTU);
    bed.post_recv(b, &[y.sge()]);
    bed.post_all(
        a,
        &[Wr::send(x.sge()), Wr::write(x.sge(), y), Wr::read(x.sge(), y), Wr::fetch_add(x.part(0, 8), y, 1)],
    );
    assert_eq!(bed.completions(a.send_cq).iter().filter(|wc| wc.is_ok()).count(), 4);
    let frames = bed.take_frames();
    assert!(frames.len() > 10);
    assert!(frames.iter().all(|f| f.headers().bth().mig_req()));
}

/// Row 58: requests with MigReq 0 are also accepted.
#[test]
fn row_58_mig_req_clear_is_accepted() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    let answers = bed.from_peer(peer, &write_of(to, EXPECTS, 3).bth(|b| b.mig_req(false)));
    assert_eq!(acknowledgement(&answers), (ACK, EXPECTS, 1));
    assert_eq!(bed.bytes(to)[..8], [3; 8]);
}
