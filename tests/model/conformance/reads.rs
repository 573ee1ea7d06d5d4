//! READs at the requester: limits, gaps, stale responses.

use super::common::*;
use hwspec::wire::Syndrome;

/// Row 38: a requester has at most max_rd_atomic outstanding READs and atomics.
#[test]
fn row_38_requester_keeps_to_max_rd_atomic() {
    for log in [0, 1, 2] {
        let (mut bed, peer, into) = foreign_by(Path { log_rd_atomic: log, ..path() }, 64, Access::LOCAL);
        let wrs: Vec<Wr> = (0..10)
            .map(|i| match i % 2 {
                0 => read_from_peer(into.part(0, 8)),
                _ => fetch_add_at_peer(into.part(0, 8), 1),
            })
            .collect();
        bed.post_all(peer.qp, &wrs);
        let allowed = 1 << log;
        let mut open = bed.answers().len() as u32;
        assert_eq!(open, allowed, "max_rd_atomic {allowed}");
        // Every response lets one more request go.
        for i in 0..10 {
            let pkt = match i % 2 {
                0 => Pkt::new(BthOpcode::RcReadRespOnly, SENDS + i).aeth(ACK, i + 1).payload(&[1; 8]),
                _ => Pkt::new(BthOpcode::RcAtomicAck, SENDS + i).aeth(ACK, i + 1).atomic_ack(0),
            };
            open = open - 1 + bed.from_peer(peer, &pkt).len() as u32;
            assert_eq!(open, allowed.min(9 - i));
        }
        assert_eq!(bed.completions(peer.qp.send_cq).len(), 10);
    }
}

/// Row 38: a responder that gets more than max_dest_rd_atomic serves or refuses them, and keeps working.
#[test]
fn row_38_responder_survives_more_reads_than_agreed() {
    let (mut bed, peer, from) = foreign_by(Path { log_dest_rd_atomic: 0, ..path() }, 4 * MTU, Access::ALL);
    let data = bed.pattern(from, 6);
    let mut answers = Vec::new();
    for i in 0..4 {
        answers.extend(bed.from_peer(peer, &read_of(from, EXPECTS + 4 * i, 0, 4 * MTU)));
    }
    let (responses, others): (Vec<_>, Vec<_>) = answers.iter().partition(|f| f.opcode() != BthOpcode::RcAck);
    assert!(others.iter().all(|f| f.syndrome() == Some(NAK_INVALID)), "{:?}", brief(&answers));
    for (i, response) in responses.iter().enumerate() {
        assert_eq!(response.payload(), &data[i % 4 * MTU..][..MTU]);
    }
}

/// Row 42: after a gap in the responses the READ is requested again from the missing PSN, with address and length adjusted.
#[test]
fn row_42_gap_in_read_responses_is_asked_for_again() {
    let (mut bed, peer, into) = foreign(4 * MTU, Access::LOCAL);
    bed.post(peer.qp, &read_from_peer(into.sge()));
    let request = bed.answers().remove(0).headers().reth().expect("a RETH");
    bed.from_peer(peer, &read_response(BthOpcode::RcReadRespFirst, SENDS, 1));
    // The response SENDS + 1 is lost.
    let again = bed.from_peer(peer, &Pkt::new(BthOpcode::RcReadRespMiddle, SENDS + 2).payload(&[3; MTU]));
    assert_eq!(brief(&again), [(BthOpcode::RcReadRequest, SENDS + 1)]);
    let reth = again[0].headers().reth().expect("a RETH");
    assert_eq!(reth.va(), request.va() + MTU as u64);
    assert_eq!(reth.dma_len(), 3 * MTU as u32);
    assert_eq!(reth.rkey(), request.rkey());
    for (opcode, i) in
        [(BthOpcode::RcReadRespFirst, 1), (BthOpcode::RcReadRespMiddle, 2), (BthOpcode::RcReadRespLast, 3)]
    {
        bed.from_peer(peer, &read_response(opcode, SENDS + i, i as u8 + 1));
    }
    assert!(bed.one(peer.qp.send_cq).is_ok());
    let want: Vec<u8> = (1..=4).flat_map(|i| [i; MTU]).collect();
    assert_eq!(bed.bytes(into), want);
}

/// Row 42: a lost request or a lost last response is requested again by the timer.
#[test]
fn row_42_lost_read_packets_are_repaired() {
    for lost in 0..5 {
        let (mut bed, [a, _], [into, from]) = ends(4 * MTU);
        let data = bed.pattern(from, 7);
        bed.wire().plan(Filter::default(), lost, 1, Fault::Drop);
        bed.post(a, &Wr::read(into.sge(), from));
        assert!(bed.advance_until(S, |b| b.has_completion(a.send_cq)), "frame {lost} was lost");
        assert!(bed.one(a.send_cq).is_ok());
        assert_eq!(bed.bytes(into), data);
    }
}

/// Row 43: a stale response is ignored: data already read is not overwritten.
#[test]
fn row_43_stale_response_is_ignored() {
    let (mut bed, peer, into) = foreign(2 * MTU, Access::LOCAL);
    bed.post(peer.qp, &read_from_peer(into.sge()));
    bed.answers();
    bed.from_peer(peer, &read_response(BthOpcode::RcReadRespFirst, SENDS, 1));
    assert_eq!(brief(&bed.from_peer(peer, &read_response(BthOpcode::RcReadRespFirst, SENDS, 9))), []);
    assert_eq!(bed.bytes(into)[..MTU], [1; MTU]);
    bed.from_peer(peer, &read_response(BthOpcode::RcReadRespLast, SENDS + 1, 2));
    assert!(bed.one(peer.qp.send_cq).is_ok());
    bed.fill(into, &[0; 2 * MTU]);
    for psn in [SENDS, SENDS + 1] {
        let stale = read_response(BthOpcode::RcReadRespOnly, psn, 9);
        assert_eq!(brief(&bed.from_peer(peer, &stale)), []);
    }
    assert_eq!(bed.bytes(into), [0; 2 * MTU]);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}

/// Row 43: an ACK, NAK or response for a PSN that was never sent, or acknowledged before, is ignored, and a response to a WRITE.
#[test]
fn row_43_acknowledgement_of_what_was_never_sent_is_ignored() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    let ghosts = [
        ack(SENDS + 1, 1),
        ack(SENDS + 1000, 1),
        ack(SENDS - 1, 0),
        nak(NAK_SEQUENCE, SENDS + 5, 0),
        nak(NAK_ACCESS, SENDS + 5, 0),
        nak(NAK_SEQUENCE, SENDS - 1, 0),
        nak(Syndrome::RnrNak(12), SENDS - 1, 0),
        Pkt::new(BthOpcode::RcReadRespOnly, SENDS).aeth(ACK, 1).payload(&[1; 8]),
        Pkt::new(BthOpcode::RcReadRespOnly, SENDS + 5).aeth(ACK, 1).payload(&[1; 8]),
        Pkt::new(BthOpcode::RcAtomicAck, SENDS + 5).aeth(ACK, 1).atomic_ack(1),
    ];
    for pkt in &ghosts {
        assert_eq!(brief(&bed.from_peer(peer, pkt)), [], "{pkt:?}");
        assert_eq!(bed.completions(peer.qp.send_cq), [], "{pkt:?}");
        assert_eq!(bed.qp_state(peer.qp), QpState::Rts, "{pkt:?}");
    }
    bed.from_peer(peer, &ack(SENDS, 1));
    assert!(bed.one(peer.qp.send_cq).is_ok());
}

/// Row 42: it is requested only once, even if the response that reveals the gap acknowledges requests before the READ.
#[test]
fn row_42_a_gap_behind_progress_is_asked_for_once() {
    let (mut bed, peer, mr) = foreign_by(Path { retry_count: 1, ..path() }, 4 * MTU, Access::LOCAL);
    bed.post_all(peer.qp, &[write_to_peer(mr.part(0, 8)), read_from_peer(mr.sge())]);
    bed.answers();
    let middle = |psn| Pkt::new(BthOpcode::RcReadRespMiddle, psn).payload(&[1; MTU]);
    let again = bed.from_peer(peer, &middle(SENDS + 2));
    assert_eq!(brief(&again), [(BthOpcode::RcReadRequest, SENDS + 1)]);
    assert!(bed.one(peer.qp.send_cq).is_ok(), "the WRITE is acknowledged");
    let last = Pkt::new(BthOpcode::RcReadRespLast, SENDS + 4).aeth(ACK, 2).payload(&[1; MTU]);
    for late in [middle(SENDS + 3), last] {
        assert_eq!(brief(&bed.from_peer(peer, &late)), []);
    }
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}
