//! Invalid requests at the responder.

use super::common::*;
use devmodel::Conformance;

#[track_caller]
fn assert_invalid(bed: &mut Bed, peer: Peer, pkt: &Pkt, what: &str) {
    assert_eq!(acknowledgement(&bed.from_peer(peer, pkt)).0, NAK_INVALID, "{what}");
    assert_responder_failed(bed, peer.qp, EventType::WqInvalReqError);
}

/// Row 23: MIDDLE or LAST without FIRST.
#[test]
fn row_23_middle_or_last_without_first_is_invalid() {
    for opcode in [
        BthOpcode::RcSendMiddle,
        BthOpcode::RcSendLast,
        BthOpcode::RcSendLastImm,
        BthOpcode::RcSendLastInv,
        BthOpcode::RcWriteMiddle,
        BthOpcode::RcWriteLast,
        BthOpcode::RcWriteLastImm,
    ] {
        let (mut bed, peer, _) = judged(Config::default(), 4 * MTU);
        let pkt = Pkt::new(opcode, EXPECTS).payload(&[1; MTU]).ack_req();
        assert_invalid(&mut bed, peer, &pkt, &format!("{opcode:?}"));
    }
}

/// Row 23: FIRST or ONLY inside a message, or a packet of another kind.
#[test]
fn row_23_another_request_inside_a_message_is_invalid() {
    for opcode in [
        BthOpcode::RcSendFirst,
        BthOpcode::RcSendOnly,
        BthOpcode::RcWriteFirst,
        BthOpcode::RcWriteOnly,
        BthOpcode::RcWriteMiddle,
        BthOpcode::RcWriteLast,
        BthOpcode::RcReadRequest,
        BthOpcode::RcFetchAdd,
    ] {
        let (mut bed, peer, mr) = judged(Config::default(), 4 * MTU);
        assert_eq!(
            brief(&bed.from_peer(peer, &Pkt::new(BthOpcode::RcSendFirst, EXPECTS).payload(&[1; MTU]))),
            []
        );
        let mut pkt = Pkt::new(opcode, EXPECTS + 1).ack_req();
        pkt = pkt.reth(mr.va, mr.key, MTU as u32).atomic(mr.va, mr.key, 1, 0);
        if opcode.has_payload() {
            pkt = pkt.payload(&[1; MTU]);
        }
        assert_invalid(&mut bed, peer, &pkt, &format!("{opcode:?} inside a SEND"));
    }
}

/// Row 23: the requester of such a request fails with REM_INV_REQ.
#[test]
fn row_23_invalid_request_nak_fails_the_requester() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    bed.answers();
    bed.from_peer(peer, &nak(NAK_INVALID, SENDS, 0));
    assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::RemoteInvalReqErr);
}

/// Opcodes that RC reserves.
const RESERVED: [u8; 9] = [0x15, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f];

/// Row 24, `cx5`: a reserved opcode gets NAK 0x61.
#[test]
fn row_24_reserved_opcode_is_invalid_on_cx5() {
    for raw in RESERVED {
        let (mut bed, peer, _) = judged(Config::default(), 4 * MTU);
        let pkt = Pkt::new(BthOpcode::from_raw(raw), EXPECTS).payload(&[1; 8]).ack_req();
        let answers = bed.from_peer(peer, &pkt);
        let (syndrome, psn, _) = acknowledgement(&answers);
        assert_eq!((syndrome, psn), (NAK_INVALID, EXPECTS), "opcode {raw:#x}");
        assert_eq!(bed.completions(peer.qp.recv_cq).iter().filter(|wc| wc.is_ok()).count(), 0);
    }
}

/// Row 24, `ibta`: a reserved opcode is dropped or refused, never executed.
#[test]
fn row_24_reserved_opcode_is_never_executed_on_ibta() {
    for raw in RESERVED {
        let (mut bed, peer, mr) = judged(Config { profile: Conformance::Ibta, ..Config::default() }, 4 * MTU);
        let pkt = Pkt::new(BthOpcode::from_raw(raw), EXPECTS).payload(&[1; 8]).ack_req();
        assert_eq!(brief(&bed.from_peer(peer, &pkt)), [], "opcode {raw:#x}");
        assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
        assert_eq!(bed.query(peer.qp).next_rcv_psn(), EXPECTS);
        assert_eq!(bed.bytes(mr), vec![0; mr.len]);
    }
}

/// Row 30: a SEND longer than the receive buffer: NAK 0x61, LOC_LEN_ERR at the responder.
#[test]
fn row_30_send_longer_than_the_receive_fails_the_responder() {
    for (len, room) in [(16, 8), (2 * MTU, MTU), (3 * MTU, MTU + 8)] {
        let (mut bed, peer, to) = foreign(4 * MTU, Access::LOCAL);
        bed.post_recv(peer.qp, &[to.part(0, room as u32)]);
        let answers: Vec<Captured> =
            message(SEND, EXPECTS, &vec![1; len]).iter().flat_map(|pkt| bed.from_peer(peer, pkt)).collect();
        assert_eq!(acknowledgement(&answers).0, NAK_INVALID);
        let wc = bed.one(peer.qp.recv_cq);
        assert_eq!((wc.opcode, wc.error), (CqeOpcode::RespErr, Some(CqeSyndrome::LocalLengthErr)));
        assert_eq!(bed.qp_state(peer.qp), QpState::Err);
        assert_eq!(bed.bytes(to)[room..], vec![0; 4 * MTU - room], "nothing behind the receive buffer");
    }
}

/// Row 30: the requester fails with REM_INV_REQ.
#[test]
fn row_30_send_longer_than_the_receive_fails_the_requester() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.post_recv(b, &[to.part(0, 32)]);
    bed.post(a, &Wr::send(from.sge()));
    assert_requester_failed(&mut bed, a, CqeSyndrome::RemoteInvalReqErr);
    assert_eq!(bed.one(b.recv_cq).error, Some(CqeSyndrome::LocalLengthErr));
}
