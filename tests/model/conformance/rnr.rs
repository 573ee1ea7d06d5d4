//! Receiver not ready.

use super::common::*;
use hwspec::wire::{Syndrome, aeth::rnr_ns};

/// Row 19: a SEND that finds no receive WQE gets an RNR NAK with its own PSN; the QP stays in RTS.
#[test]
fn row_19_send_without_a_receive_gets_rnr_nak() {
    let (mut bed, peer, buffer) = foreign_by(Path { min_rnr_nak: 14, ..path() }, 64, Access::LOCAL);
    let pkt = Pkt::new(BthOpcode::RcSendOnly, EXPECTS).payload(&[1; 8]).ack_req();
    let answers = bed.from_peer(peer, &pkt);
    assert_eq!(acknowledgement(&answers), (Syndrome::RnrNak(14), EXPECTS, 0));
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    // The same request finds a receive later.
    bed.post_recv(peer.qp, &[buffer.sge()]);
    assert_eq!(acknowledgement(&bed.from_peer(peer, &pkt)), (ACK, EXPECTS, 1));
    assert_eq!(bed.one(peer.qp.recv_cq).opcode, CqeOpcode::RespSend);
}

/// Row 19: a SEND gets the RNR NAK on its first packet only; the packets after it are out of sequence and get no answer.
#[test]
fn row_19_send_meets_rnr_on_its_first_packet() {
    let (mut bed, peer, _) = foreign(64, Access::LOCAL);
    let packets = message(SEND, EXPECTS, &[1; 3 * MTU]);
    let answers = bed.from_peer(peer, &packets[0]);
    let (syndrome, psn, _) = acknowledgement(&answers);
    assert_eq!((syndrome, psn), (Syndrome::RnrNak(path().min_rnr_nak), EXPECTS));
    for pkt in &packets[1..] {
        assert_eq!(brief(&bed.from_peer(peer, pkt)), []);
    }
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}

/// Row 19: a WRITE with immediate gets the RNR NAK on its last packet; the data before is written.
#[test]
fn row_19_write_imm_meets_rnr_on_its_last_packet() {
    let (mut bed, peer, to) = foreign(3 * MTU, Access::ALL);
    let packets = write_imm_message(to, EXPECTS, &[5; 3 * MTU], 0);
    assert_eq!(brief(&bed.from_peer(peer, &packets[0])), []);
    assert_eq!(brief(&bed.from_peer(peer, &packets[1])), []);
    let (syndrome, psn, _) = acknowledgement(&bed.from_peer(peer, &packets[2]));
    assert_eq!((syndrome, psn), (Syndrome::RnrNak(path().min_rnr_nak), EXPECTS + 2));
    assert_eq!(bed.bytes(to), [[5; 2 * MTU].as_slice(), &[0; MTU]].concat());
    bed.post_recv(peer.qp, &[]);
    let (syndrome, psn, _) = acknowledgement(&bed.from_peer(peer, &packets[2]));
    assert_eq!((syndrome, psn), (ACK, EXPECTS + 2));
    assert_eq!(bed.one(peer.qp.recv_cq).byte_len, 3 * MTU as u32);
    assert_eq!(bed.bytes(to), [5; 3 * MTU]);
}

/// Row 20: the requester waits at least the time in the table, then sends the same PSN again.
#[test]
fn row_20_rnr_wait_is_at_least_that_of_the_table() {
    // Codes and times of the table in units of 10 us.
    for (code, time) in [(0, 65536), (1, 1), (12, 64), (14, 128), (25, 6144), (31, 49152)] {
        let wait = time * 10 * US;
        assert_eq!(rnr_ns(code) * NS, wait);
        // An acknowledgement timeout long enough not to interfere.
        let (mut bed, peer, from) = foreign_by(Path { timeout: 24, ..path() }, 64, Access::LOCAL);
        bed.post(peer.qp, &Wr::send(from.sge()));
        bed.answers();
        assert_eq!(brief(&bed.from_peer(peer, &nak(Syndrome::RnrNak(code), SENDS, 0))), []);
        bed.advance(wait - 1);
        assert_eq!(brief(&bed.answers()), [], "code {code}: before its time");
        bed.advance(wait + 10 * US);
        assert_eq!(brief(&bed.answers()), [(BthOpcode::RcSendOnly, SENDS)], "code {code}: after its time");
    }
}

/// Row 21: rnr_retry 7 never runs out, and does not consume retry_cnt.
#[test]
fn row_21_rnr_retry_seven_is_infinite() {
    let (mut bed, [a, b], [from, to]) =
        ends_on(Path { retry_count: 1, rnr_retry: 7, min_rnr_nak: 1, ..path() }, 64);
    bed.post(a, &Wr::send(from.sge()));
    bed.advance(20 * MS);
    let rnr = bed.take_frames().iter().filter(|f| matches!(f.syndrome(), Some(Syndrome::RnrNak(_)))).count();
    assert!(rnr > 100, "{rnr} RNR NAKs in 20 ms");
    assert_eq!(bed.completions(a.send_cq), []);
    bed.post_recv(b, &[to.sge()]);
    bed.advance(MS);
    assert!(bed.one(a.send_cq).is_ok());
}

/// Row 22: rnr_retry retransmissions, then RNR_RETRY_EXC with vendor_err 0x87, and the QP is in ERR.
#[test]
fn row_22_rnr_retries_exhausted_end_in_rnr_retry_exc() {
    for rnr_retry in [0, 1, 6] {
        let (mut bed, [a, b], [from, _]) = ends_on(Path { rnr_retry, min_rnr_nak: 1, ..path() }, 64);
        bed.post(a, &Wr::send(from.sge()));
        assert!(bed.advance_until(S, |b| b.has_completion(a.send_cq)));
        let wc = assert_requester_failed(&mut bed, a, CqeSyndrome::RnrRetryExcErr);
        assert_eq!(wc.vendor_err, 0x87);
        let sent = bed.take_frames().iter().filter(|f| f.from == 1).count();
        assert_eq!(sent, usize::from(rnr_retry) + 1, "transmissions with rnr_retry {rnr_retry}");
        assert_eq!(bed.qp_state(b), QpState::Rts);
    }
}

/// Row 64: an RNR NAK by itself neither consumes nor restores a transport retry: timeouts add up across RNR NAKs.
#[test]
fn row_64_rnr_nak_does_not_restore_retry_cnt() {
    let (mut bed, peer, from) =
        foreign_by(Path { retry_count: 2, rnr_retry: 7, ..path() }, 64, Access::LOCAL);
    let rnr = nak(Syndrome::RnrNak(1), SENDS, 0);
    bed.post(peer.qp, &Wr::send(from.sge()));
    assert_eq!(bed.answers().len(), 1);
    for _ in 0..2 {
        // Several times: the request or its response is lost, then the peer is not ready.
        assert!(bed.advance_until(4 * timeout(14), |b| !b.wire().left.is_empty()));
        for _ in 0..5 {
            bed.answers();
            assert_eq!(brief(&bed.from_peer(peer, &rnr)), []);
            bed.advance(MS);
            assert_eq!(bed.wire().left.len(), 1);
        }
        bed.answers();
    }
    assert!(bed.advance_until(4 * timeout(14), |b| b.has_completion(peer.qp.send_cq)));
    assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::TransportRetryExcErr);
}

/// Row 64: if an RNR NAK acknowledges requests before its PSN, both counters are restored, and the retry that it demands is charged to the
/// restored one.
#[test]
fn row_64_what_an_rnr_nak_acknowledges_restores_both_counters() {
    let (mut bed, peer, from) =
        foreign_by(Path { retry_count: 1, rnr_retry: 1, ..path() }, 64, Access::LOCAL);
    let n = 6;
    bed.post_all(peer.qp, &vec![Wr::send(from.sge()); n as usize]);
    bed.answers();
    for i in 1..n {
        assert!(bed.advance_until(4 * timeout(14), |b| !b.wire().left.is_empty()), "timeout {i}");
        bed.answers();
        bed.from_peer(peer, &nak(Syndrome::RnrNak(1), SENDS + i, i));
        bed.advance(MS);
        assert_eq!(bed.answers().len() as u32, n - i, "RNR NAK {i}");
    }
    // The last one used the only retry for its PSN.
    bed.from_peer(peer, &nak(Syndrome::RnrNak(1), SENDS + n - 1, n - 1));
    let failed = bed.completions(peer.qp.send_cq).last().and_then(|wc| wc.error);
    assert_eq!(failed, Some(CqeSyndrome::RnrRetryExcErr));
}

/// Row 65: nothing shortens, extends or repeats an RNR wait, or consumes a retry during it: neither copies of the RNR NAK nor older NAKs
/// that arrive late. The acknowledgement timer does not run, even if the wait is longer.
#[test]
fn row_65_late_naks_do_not_disturb_an_rnr_wait() {
    let (mut bed, peer, from) =
        foreign_by(Path { timeout: 10, retry_count: 1, rnr_retry: 1, ..path() }, 64, Access::LOCAL);
    bed.post_all(peer.qp, &[Wr::send(from.sge()), Wr::read(from.sge(), from)]);
    bed.answers();
    let start = bed.now();
    let rnr = nak(Syndrome::RnrNak(25), SENDS, 0);
    for late in [
        &rnr,
        &nak(NAK_SEQUENCE, SENDS, 0),
        &rnr,
        &rnr,
        &nak(NAK_SEQUENCE, SENDS, 0),
        &nak(NAK_SEQUENCE, SENDS, 0),
    ] {
        assert_eq!(brief(&bed.from_peer(peer, late)), []);
        bed.advance(2 * MS);
    }
    assert!(bed.advance_until(S, |b| !b.wire().left.is_empty()));
    let waited = bed.now() - start;
    assert!((61_440 * US..63_000 * US).contains(&waited), "{waited} ps");
    assert_eq!(
        bed.answers().iter().map(Captured::psn).collect::<Vec<_>>(),
        [SENDS, SENDS + 1],
        "sent again, once"
    );
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    // One retry of each counter remains, apart from the one for the RNR NAK.
    let left = bed.query(peer.qp);
    assert_eq!((left.cur_retry_count(), left.cur_rnr_retry()), (1, 0));
}
