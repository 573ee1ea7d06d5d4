//! Duplicate requests.

use super::common::*;

/// Row 6: a duplicate SEND is not executed again: it consumes no receive WQE, and the ACK has the last completed PSN and the same MSN.
#[test]
fn row_06_duplicate_send_uses_no_receive() {
    let (mut bed, peer, buffer) = foreign(64, Access::LOCAL);
    let send = |psn: u32| Pkt::new(BthOpcode::RcSendOnly, psn).payload(&[psn as u8; 4]).ack_req();
    for psn in EXPECTS..EXPECTS + 3 {
        bed.post_recv(peer.qp, &[buffer.sge()]);
        bed.from_peer(peer, &send(psn));
    }
    bed.post_recv(peer.qp, &[buffer.sge()]);
    assert_eq!(bed.completions(peer.qp.recv_cq).len(), 3);
    bed.fill(buffer, &[0; 64]);
    for psn in [EXPECTS, EXPECTS + 1, EXPECTS + 2, EXPECTS] {
        assert_eq!(acknowledgement(&bed.from_peer(peer, &send(psn))), (ACK, EXPECTS + 2, 3));
    }
    assert_eq!(bed.completions(peer.qp.recv_cq), []);
    assert_eq!(bed.bytes(buffer), [0; 64]);
    // The posted receive is still available for the next message.
    assert_eq!(acknowledgement(&bed.from_peer(peer, &send(EXPECTS + 3))), (ACK, EXPECTS + 3, 4));
    assert_eq!(bed.one(peer.qp.recv_cq).wqe, 3);
}

/// Row 6: a duplicate WRITE does not write again.
#[test]
fn row_06_duplicate_write_is_not_written_again() {
    let (mut bed, peer, to) = foreign(3 * MTU, Access::ALL);
    let packets = write_message(to, EXPECTS, &[7; 3 * MTU]);
    for pkt in &packets {
        bed.from_peer(peer, pkt);
    }
    assert_eq!(bed.bytes(to), [7; 3 * MTU]);
    bed.fill(to, &[0; 3 * MTU]);
    for pkt in &packets {
        for answer in bed.from_peer(peer, &pkt.clone().ack_req()) {
            assert_eq!(acknowledgement(&[answer]), (ACK, EXPECTS + 2, 1));
        }
    }
    assert_eq!(bed.bytes(to), [0; 3 * MTU]);
}

/// Row 7: a duplicate READ reads memory again and is replayed from its PSN.
#[test]
fn row_07_duplicate_read_is_replayed() {
    let (mut bed, peer, from) = foreign(3 * MTU, Access::ALL);
    let read = read_of(from, EXPECTS, 0, 3 * MTU);
    for seed in [1, 2] {
        let data = bed.pattern(from, seed);
        let answers = bed.from_peer(peer, &read);
        assert_eq!(
            brief(&answers),
            [
                (BthOpcode::RcReadRespFirst, EXPECTS),
                (BthOpcode::RcReadRespMiddle, EXPECTS + 1),
                (BthOpcode::RcReadRespLast, EXPECTS + 2)
            ]
        );
        let payload: Vec<u8> = answers.iter().flat_map(|a| a.payload().to_vec()).collect();
        assert_eq!(payload, data, "memory as it is now");
    }
    assert_eq!(bed.query(peer.qp).next_rcv_psn(), EXPECTS + 3);
}

/// Row 7: a duplicate READ may request a part of the original.
#[test]
fn row_07_duplicate_read_of_a_part_is_replayed() {
    let (mut bed, peer, from) = foreign(4 * MTU, Access::ALL);
    let data = bed.pattern(from, 3);
    bed.from_peer(peer, &read_of(from, EXPECTS, 0, 4 * MTU));
    let answers = bed.from_peer(peer, &read_of(from, EXPECTS + 1, MTU, 3 * MTU));
    assert_eq!(
        brief(&answers),
        [
            (BthOpcode::RcReadRespFirst, EXPECTS + 1),
            (BthOpcode::RcReadRespMiddle, EXPECTS + 2),
            (BthOpcode::RcReadRespLast, EXPECTS + 3)
        ]
    );
    let payload: Vec<u8> = answers.iter().flat_map(|a| a.payload().to_vec()).collect();
    assert_eq!(payload, data[MTU..]);
    let answers = bed.from_peer(peer, &read_of(from, EXPECTS + 3, 3 * MTU, MTU));
    assert_eq!(brief(&answers), [(BthOpcode::RcReadRespOnly, EXPECTS + 3)]);
    assert_eq!(answers[0].payload(), &data[3 * MTU..]);
}

/// Row 7: the rkey of a duplicate READ is checked again: a deleted key returns no data.
#[test]
fn row_07_duplicate_read_checks_the_key_again() {
    let (mut bed, peer, from) = foreign(MTU, Access::ALL);
    let read = read_of(from, EXPECTS, 0, MTU);
    assert_eq!(brief(&bed.from_peer(peer, &read)), [(BthOpcode::RcReadRespOnly, EXPECTS)]);
    bed.destroy_mr(from).expect("DESTROY_MKEY");
    for answer in bed.from_peer(peer, &read) {
        assert_eq!((answer.opcode(), answer.syndrome()), (BthOpcode::RcAck, Some(NAK_ACCESS)));
    }
}

/// Row 8: a duplicate READ outside the original is silently dropped.
#[test]
fn row_08_duplicate_read_outside_the_original_is_dropped() {
    let (mut bed, peer, from) = foreign(8 * MTU, Access::ALL);
    bed.from_peer(peer, &read_of(from, EXPECTS, 0, 2 * MTU));
    bed.from_peer(peer, &read_of(from, EXPECTS + 2, 0, 2 * MTU));
    // Longer, elsewhere, at the PSN of another part, before the original, and by another key.
    let others = [(0, 0, 3 * MTU), (0, 4 * MTU, 2 * MTU), (0, 8, MTU), (1, 0, MTU), (-1, 0, MTU)];
    let mut others =
        others.map(|(i, at, len)| read_of(from, EXPECTS.wrapping_add_signed(i), at, len)).to_vec();
    others.push(read_of(Mr { key: from.key ^ 1, ..from }, EXPECTS, 0, 2 * MTU));
    for other in &others {
        assert_eq!(brief(&bed.from_peer(peer, other)), [], "{other:?}");
    }
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}

/// Row 8: a duplicate READ is silently dropped if its resource was used for later requests.
#[test]
fn row_08_duplicate_read_without_its_resource_is_dropped() {
    let (mut bed, peer, from) = foreign(MTU, Access::ALL);
    let read = |psn| read_of(from, psn, 0, MTU);
    for psn in EXPECTS..EXPECTS + 40 {
        assert_eq!(brief(&bed.from_peer(peer, &read(psn))), [(BthOpcode::RcReadRespOnly, psn)]);
    }
    assert_eq!(brief(&bed.from_peer(peer, &read(EXPECTS))), []);
    assert_eq!(
        brief(&bed.from_peer(peer, &read(EXPECTS + 39))),
        [(BthOpcode::RcReadRespOnly, EXPECTS + 39)],
        "the last one is still kept"
    );
}

/// Row 9: a duplicate FETCH_ADD returns the saved original value; memory changes once.
#[test]
fn row_09_duplicate_fetch_add_is_done_once() {
    let (mut bed, peer, on) = foreign(8, Access::ALL);
    bed.fill(on, &100u64.to_ne_bytes());
    let pkt = Pkt::new(BthOpcode::RcFetchAdd, EXPECTS).atomic(on.va, on.key, 5, 0).ack_req();
    for _ in 0..3 {
        let answers = bed.from_peer(peer, &pkt);
        assert_eq!(brief(&answers), [(BthOpcode::RcAtomicAck, EXPECTS)]);
        let ack = answers[0].headers().atomic_ack().expect("an AtomicAckETH");
        assert_eq!((ack.original(), answers[0].msn()), (100, Some(1)));
    }
    assert_eq!(bed.bytes(on), 105u64.to_ne_bytes());
}

/// Row 9: a duplicate compare-and-swap returns the saved original value, even if the swap would succeed now.
#[test]
fn row_09_duplicate_compare_swap_is_done_once() {
    let (mut bed, peer, on) = foreign(8, Access::ALL);
    bed.fill(on, &7u64.to_ne_bytes());
    let pkt = Pkt::new(BthOpcode::RcCompareSwap, EXPECTS).atomic(on.va, on.key, 9, 7).ack_req();
    bed.from_peer(peer, &pkt);
    assert_eq!(bed.bytes(on), 9u64.to_ne_bytes());
    bed.fill(on, &7u64.to_ne_bytes());
    let answers = bed.from_peer(peer, &pkt);
    assert_eq!(answers[0].headers().atomic_ack().map(|a| a.original()), Some(7));
    assert_eq!(bed.bytes(on), 7u64.to_ne_bytes(), "not swapped again");
}

/// Row 10: a duplicate atomic is silently dropped if its resource is gone.
#[test]
fn row_10_duplicate_atomic_without_its_resource_is_dropped() {
    let (mut bed, peer, on) = foreign(8, Access::ALL);
    let add = |psn| Pkt::new(BthOpcode::RcFetchAdd, psn).atomic(on.va, on.key, 1, 0).ack_req();
    for psn in EXPECTS..EXPECTS + 40 {
        bed.from_peer(peer, &add(psn));
    }
    assert_eq!(brief(&bed.from_peer(peer, &add(EXPECTS))), []);
    assert_eq!(bed.bytes(on), 40u64.to_ne_bytes());
}
