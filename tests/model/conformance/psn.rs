//! Packet sequence numbers at the responder and across their wrap.

use super::common::*;

/// Row 1: a request with the expected PSN is executed, and the next PSN is expected.
#[test]
fn row_01_expected_psn_is_executed() {
    let (mut bed, peer, buffer) = foreign(64, Access::LOCAL);
    for i in 0..3u8 {
        bed.post_recv(peer.qp, &[buffer.sge()]);
        let pkt = Pkt::new(BthOpcode::RcSendOnly, EXPECTS + u32::from(i)).payload(&[i; 8]).ack_req();
        let answers = bed.from_peer(peer, &pkt);
        assert_eq!(acknowledgement(&answers), (ACK, EXPECTS + u32::from(i), u32::from(i) + 1));
        let wc = bed.one(peer.qp.recv_cq);
        assert_eq!((wc.opcode, wc.byte_len), (CqeOpcode::RespSend, 8));
        assert_eq!(bed.bytes(buffer)[..8], [i; 8]);
    }
    assert_eq!(bed.query(peer.qp).next_rcv_psn(), EXPECTS + 3);
}

fn wrapping() -> Path {
    Path { sq_psn: 0xff_fffe, rq_psn: 0xff_fffe, ..path() }
}

/// Row 2: PSNs wrap in requests and their acknowledgements.
#[test]
fn row_02_psn_wraps_in_requests_and_acks() {
    let (mut bed, [a, b], [from, to]) = ends_on(wrapping(), 5 * MTU);
    let data = bed.pattern(from, 1);
    for _ in 0..3 {
        bed.done(a, &Wr::write(from.sge(), to));
        assert_eq!(bed.bytes(to), data);
    }
    let frames = bed.take_frames();
    assert!(frames.iter().filter_map(|f| f.syndrome()).all(|s| s == ACK));
    let psns: Vec<u32> = frames.iter().filter(|f| f.from == 1).map(|f| f.psn()).collect();
    let want: Vec<u32> = (0..15).map(|i| (0xff_fffe + i) & 0xff_ffff).collect();
    assert_eq!(psns, want);
    assert_eq!(bed.query(b).next_rcv_psn(), 13);
}

/// Row 2: PSNs wrap in READ responses.
#[test]
fn row_02_psn_wraps_in_read_responses() {
    let (mut bed, [a, _], [into, from]) = ends_on(wrapping(), 5 * MTU);
    let data = bed.pattern(from, 2);
    bed.done(a, &Wr::read(into.sge(), from));
    assert_eq!(bed.bytes(into), data);
    let frames = bed.take_frames();
    let responses: Vec<u32> = frames.iter().filter(|f| f.from == 2).map(|f| f.psn()).collect();
    assert_eq!(responses, [0xff_fffe, 0xff_ffff, 0, 1, 2]);
}

/// Row 2: PSNs wrap in retransmissions: a packet lost on either side of the wrap is retransmitted with its own PSN.
#[test]
fn row_02_psn_wraps_in_retransmissions() {
    for lost in [0xff_fffe, 0xff_ffff, 0, 1] {
        let (mut bed, [a, _], [from, to]) = ends_on(wrapping(), 5 * MTU);
        let data = bed.pattern(from, 3);
        bed.wire().plan(Filter::from(1).psn(lost), 0, 1, Fault::Drop);
        bed.post(a, &Wr::write(from.sge(), to));
        assert!(bed.advance_until(10 * S, |b| b.has_completion(a.send_cq)), "PSN {lost:#x} was lost");
        assert!(bed.one(a.send_cq).is_ok());
        assert_eq!(bed.bytes(to), data);
        let again = bed.take_frames().iter().filter(|f| f.from == 1 && f.psn() == lost).count();
        assert_eq!(again, 2, "PSN {lost:#x} is sent twice");
    }
}

/// Row 2: the window is 2^23 wide on either side of the expected PSN.
#[test]
fn row_02_psn_is_compared_in_a_window_of_half_the_numbers() {
    for (distance, is_nak) in [(0x7f_ffff, true), (0x80_0000, false), (0xff_ffff, false)] {
        let (mut bed, peer, _) = foreign(64, Access::LOCAL);
        let psn = (EXPECTS + distance) & 0xff_ffff;
        let answers = bed.from_peer(peer, &Pkt::new(BthOpcode::RcSendOnly, psn).payload(&[1; 8]).ack_req());
        let (syndrome, ..) = acknowledgement(&answers);
        assert_eq!(syndrome == NAK_SEQUENCE, is_nak, "{distance:#x} ahead");
    }
}

/// Row 3: a PSN ahead of the expected one gets one NAK with the expected PSN, is not executed, and the QP stays in RTS.
#[test]
fn row_03_psn_ahead_gets_one_sequence_nak() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    let answers = bed.from_peer(peer, &write_of(to, EXPECTS + 2, 9));
    assert_eq!(acknowledgement(&answers), (NAK_SEQUENCE, EXPECTS, 0));
    assert_eq!(bed.bytes(to)[..8], [0; 8]);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
    assert_eq!(bed.query(peer.qp).next_rcv_psn(), EXPECTS);
}

/// Row 4: after a sequence NAK further packets ahead get no answer until the expected PSN arrives; duplicates are still answered; a later
/// gap gets a NAK again.
#[test]
fn row_04_out_of_sequence_is_silent_until_the_expected_psn() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    let write = |psn: u32| write_of(to, psn, psn as u8);
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(EXPECTS))), (ACK, EXPECTS, 1));
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(EXPECTS + 2))), (NAK_SEQUENCE, EXPECTS + 1, 1));
    for psn in [EXPECTS + 2, EXPECTS + 3, EXPECTS + 4] {
        assert_eq!(brief(&bed.from_peer(peer, &write(psn))), []);
    }
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(EXPECTS))), (ACK, EXPECTS, 1), "a duplicate");
    assert_eq!(brief(&bed.from_peer(peer, &write(EXPECTS + 5))), [], "a duplicate does not end the silence");
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(EXPECTS + 1))), (ACK, EXPECTS + 1, 2));
    assert_eq!(acknowledgement(&bed.from_peer(peer, &write(EXPECTS + 3))), (NAK_SEQUENCE, EXPECTS + 2, 2));
}

/// Row 5: any request with a PSN behind the expected one is a duplicate, and never gets a NAK.
#[test]
fn row_05_psn_behind_never_gets_a_nak() {
    let (mut bed, peer, to) = foreign(64, Access::ALL);
    for psn in EXPECTS..EXPECTS + 4 {
        acknowledgement(&bed.from_peer(peer, &write_of(to, psn, 1)));
    }
    let odd = [
        write_of(to, EXPECTS, 2),
        Pkt::new(BthOpcode::RcSendOnly, EXPECTS + 1).payload(&[2; 8]).ack_req(),
        Pkt::new(BthOpcode::RcSendMiddle, EXPECTS + 2).payload(&[2; MTU]).ack_req(),
        read_of(to, EXPECTS + 3, 0, 8),
        Pkt::new(BthOpcode::RcSendOnly, EXPECTS - 1).payload(&[2; 8]).ack_req(),
        Pkt::new(BthOpcode::RcFetchAdd, EXPECTS).atomic(to.va, to.key, 1, 0),
    ];
    for pkt in &odd {
        let answers = bed.from_peer(peer, pkt);
        for answer in &answers {
            assert!(matches!(answer.syndrome(), None | Some(hwspec::wire::Syndrome::Ack(_))), "{answer:?}");
        }
    }
    assert_eq!(bed.bytes(to)[..8], [1; 8], "nothing was executed again");
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}
