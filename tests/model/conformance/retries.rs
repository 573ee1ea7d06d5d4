//! Lost packets: timers, retransmission and exhausted retries.

use super::common::*;

/// Row 15: after a lost ACK the requester retransmits with the same PSN, and the responder does not execute the request again.
#[test]
fn row_15_lost_ack_is_repaired_with_the_same_psn() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.post_recv(b, &[to.sge()]);
    bed.post_recv(b, &[to.sge()]);
    bed.wire().plan(Filter::opcode(BthOpcode::RcAck), 0, 1, Fault::Drop);
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(bed.completions(a.send_cq), []);
    let start = bed.now();
    assert!(bed.advance_until(4 * timeout(14), |b| b.has_completion(a.send_cq)));
    assert!(bed.now() - start >= timeout(14), "not before the timeout");
    assert!(bed.one(a.send_cq).is_ok());
    assert_eq!(bed.completions(b.recv_cq).len(), 1, "executed once");
    let sent: Vec<u32> = bed.take_frames().iter().filter(|f| f.from == 1).map(|f| f.psn()).collect();
    assert_eq!(sent, [SENDS, SENDS]);
}

/// Row 15: retransmission begins at the oldest unacknowledged request.
#[test]
fn row_15_retransmission_begins_at_the_oldest_unacknowledged() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post_all(peer.qp, &vec![write_to_peer(from.sge()); 4]);
    bed.answers();
    assert_eq!(brief(&bed.from_peer(peer, &ack(SENDS + 1, 2))), []);
    assert!(bed.advance_until(4 * timeout(14), |b| !b.wire().left.is_empty()));
    let again: Vec<u32> = bed.answers().iter().map(|f| f.psn()).collect();
    assert_eq!(again, [SENDS + 2, SENDS + 3]);
}

/// Row 15: the timer restarts when an acknowledgement makes progress.
#[test]
fn row_15_timer_restarts_on_progress() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post_all(peer.qp, &[write_to_peer(from.sge()), write_to_peer(from.sge())]);
    bed.answers();
    bed.advance(timeout(14) * 9 / 10);
    assert_eq!(brief(&bed.from_peer(peer, &ack(SENDS, 1))), []);
    bed.advance(timeout(14) * 9 / 10);
    assert_eq!(brief(&bed.answers()), [], "a whole timeout has not passed since the acknowledgement");
    bed.advance(4 * timeout(14));
    assert_eq!(bed.answers().first().map(|f| f.psn()), Some(SENDS + 1));
}

/// Row 16: with T = 0 there is no timeout.
#[test]
fn row_16_timeout_zero_never_times_out() {
    let (mut bed, peer, from) = foreign_by(Path { timeout: 0, ..path() }, 64, Access::LOCAL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    assert_eq!(bed.answers().len(), 1);
    bed.advance(10_000 * S);
    assert_eq!(brief(&bed.answers()), []);
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}

/// Row 17: retry_cnt retransmissions, then RETRY_EXC with vendor_err 0x81, and the QP is in ERR.
#[test]
fn row_17_retries_exhausted_end_in_retry_exc() {
    for retry_count in [0, 1, 3, 7] {
        let (mut bed, peer, from) = foreign_by(Path { retry_count, ..path() }, 64, Access::LOCAL);
        let start = bed.now();
        bed.post(peer.qp, &write_to_peer(from.sge()));
        let tries = u64::from(retry_count) + 1;
        assert!(bed.advance_until(4 * tries * timeout(14), |b| b.has_completion(peer.qp.send_cq)));
        assert!(bed.now() - start >= tries * timeout(14));
        let wc = assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::TransportRetryExcErr);
        assert_eq!(wc.vendor_err, 0x81);
        assert_eq!(bed.answers().len() as u64, tries, "transmissions with retry_cnt {retry_count}");
    }
}

/// Row 17: the time to detect a dead peer grows with T within the bounds of the specification, and on `cx5` T is at least 16.
#[test]
fn row_17_detection_time_lies_in_the_bounds_of_t() {
    let floor = Config { min_ack_timeout: 16, ..Config::default() };
    let none = Config { profile: devmodel::Conformance::Ibta, ..Config::default() };
    for (config, t, effective) in
        [(none, 8, 8), (none, 14, 14), (none, 18, 18), (floor, 1, 16), (floor, 14, 16), (floor, 18, 18)]
    {
        let mut bed = Bed::new(config);
        let peer = bed.foreign(1, Path { timeout: t, retry_count: 7, ..path() });
        let from = bed.mr(1, 64, Access::LOCAL);
        let start = bed.now();
        bed.post(peer.qp, &write_to_peer(from.sge()));
        assert!(bed.advance_until(32 * timeout(effective), |b| b.has_completion(peer.qp.send_cq)));
        let took = bed.now() - start;
        assert!(took >= 8 * timeout(effective), "T = {t}: {took} ps");
    }
}

/// Row 18: a sequence NAK acknowledges everything before its PSN, and transmission restarts from there.
#[test]
fn row_18_sequence_nak_restarts_from_its_psn() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    let posted = bed.post_all(peer.qp, &vec![write_to_peer(from.sge()); 4]);
    bed.answers();
    let again = bed.from_peer(peer, &nak(NAK_SEQUENCE, SENDS + 2, 2));
    let done: Vec<u16> = bed.completions(peer.qp.send_cq).iter().map(|wc| wc.wqe).collect();
    assert_eq!(done, posted[..2], "implicitly acknowledged");
    assert_eq!(brief(&again), [(BthOpcode::RcWriteOnly, SENDS + 2), (BthOpcode::RcWriteOnly, SENDS + 3)]);
}

/// Row 18: a restart in the middle of a message continues the message.
#[test]
fn row_18_sequence_nak_restarts_inside_a_message() {
    let (mut bed, peer, from) = foreign(4 * MTU, Access::LOCAL);
    let data = bed.pattern(from, 4);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    let again = bed.from_peer(peer, &nak(NAK_SEQUENCE, SENDS + 1, 0));
    assert_eq!(
        brief(&again),
        [
            (BthOpcode::RcWriteMiddle, SENDS + 1),
            (BthOpcode::RcWriteMiddle, SENDS + 2),
            (BthOpcode::RcWriteLast, SENDS + 3)
        ]
    );
    let payload: Vec<u8> = again.iter().flat_map(|f| f.payload().to_vec()).collect();
    assert_eq!(payload, data[MTU..]);
}

/// Row 18: a sequence NAK costs one retry; without progress the retries run out.
#[test]
fn row_18_sequence_nak_costs_a_retry() {
    let (mut bed, peer, from) = foreign_by(Path { retry_count: 2, ..path() }, 64, Access::LOCAL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    for _ in 0..2 {
        assert_eq!(
            brief(&bed.from_peer(peer, &nak(NAK_SEQUENCE, SENDS, 0))),
            [(BthOpcode::RcWriteOnly, SENDS)]
        );
    }
    assert_eq!(brief(&bed.from_peer(peer, &nak(NAK_SEQUENCE, SENDS, 0))), []);
    let wc = assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::TransportRetryExcErr);
    assert_eq!(wc.vendor_err, 0x81);
}

/// Row 18: progress reloads the retry counter.
#[test]
fn row_18_progress_reloads_the_retry_counter() {
    let (mut bed, peer, from) = foreign_by(Path { retry_count: 1, ..path() }, 64, Access::LOCAL);
    let n = 6;
    bed.post_all(peer.qp, &vec![write_to_peer(from.sge()); n as usize]);
    bed.answers();
    for i in 1..n {
        let again = bed.from_peer(peer, &nak(NAK_SEQUENCE, SENDS + i, i));
        assert_eq!(again.len() as u32, n - i, "NAK {i}");
    }
    bed.from_peer(peer, &ack(SENDS + n - 1, n));
    let done = bed.completions(peer.qp.send_cq);
    assert_eq!(done.iter().filter(|wc| wc.is_ok()).count() as u32, n);
}

/// Rows 15 and 45: retransmissions send what was posted; a WQE overwritten while outstanding fails, whatever it now contains.
#[test]
fn row_15_a_wqe_rewritten_under_way_fails() {
    for inline in [&[0xee; 16][..], &[]] {
        let (mut bed, peer, _) = foreign(64, Access::LOCAL);
        let (from, other) = (bed.mr(1, 4096, Access::LOCAL), bed.mr(1, 64, Access::LOCAL));
        let index = bed.post(peer.qp, &Wr::send(from.sge()));
        assert!(!bed.answers().is_empty());
        let changed = match inline {
            [] => Wr::send(other.sge()),
            data => Wr::new(Op::Send, &[]).inline(data),
        };
        bed.rewrite(peer.qp, index, &changed.wqe(peer.qp.qpn, index));
        assert!(bed.advance_until(8 * timeout(14), |b| b.has_completion(peer.qp.send_cq)));
        let wc = bed.one(peer.qp.send_cq);
        assert_eq!(wc.error, Some(CqeSyndrome::LocalQpOpErr), "{wc:?}");
        assert_eq!(bed.qp_state(peer.qp), QpState::Err);
    }
}
