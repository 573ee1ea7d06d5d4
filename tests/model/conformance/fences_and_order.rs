//! The order of effects.

use super::common::*;

/// Row 52: a fenced request waits until earlier READs and atomics are answered.
#[test]
fn row_52_fence_waits_for_reads_and_atomics() {
    let (mut bed, peer, mr) = foreign(64, Access::LOCAL);
    bed.post_all(
        peer.qp,
        &[
            read_from_peer(mr.part(0, 8)),
            fetch_add_at_peer(mr.part(8, 8), 1),
            Wr::send(mr.part(0, 8)).fenced(),
            Wr::send(mr.part(0, 8)),
        ],
    );
    assert_eq!(
        brief(&bed.answers()),
        [(BthOpcode::RcReadRequest, SENDS), (BthOpcode::RcFetchAdd, SENDS + 1)]
    );
    let none = bed.from_peer(peer, &Pkt::new(BthOpcode::RcReadRespOnly, SENDS).aeth(ACK, 1).payload(&[5; 8]));
    assert_eq!(brief(&none), [], "the atomic is still open");
    let rest = bed.from_peer(peer, &Pkt::new(BthOpcode::RcAtomicAck, SENDS + 1).aeth(ACK, 2).atomic_ack(9));
    assert_eq!(brief(&rest), [(BthOpcode::RcSendOnly, SENDS + 2), (BthOpcode::RcSendOnly, SENDS + 3)]);
    assert_eq!(rest[0].payload(), [5; 8], "the fenced SEND carries what the READ brought");
}

/// Row 52: without a fence nothing waits.
#[test]
fn row_52_without_a_fence_nothing_waits() {
    let (mut bed, peer, mr) = foreign(64, Access::LOCAL);
    bed.post_all(peer.qp, &[read_from_peer(mr.part(0, 8)), Wr::send(mr.part(0, 8))]);
    assert_eq!(
        bed.answers().iter().map(|f| f.opcode()).collect::<Vec<_>>(),
        [BthOpcode::RcReadRequest, BthOpcode::RcSendOnly]
    );
}

/// Row 52: a fence does not wait for earlier WRITEs and SENDs.
#[test]
fn row_52_fence_does_not_wait_for_writes() {
    let (mut bed, peer, mr) = foreign(64, Access::LOCAL);
    bed.post_all(peer.qp, &[write_to_peer(mr.sge()), Wr::send(mr.sge()).fenced()]);
    assert_eq!(
        bed.answers().iter().map(|f| f.opcode()).collect::<Vec<_>>(),
        [BthOpcode::RcWriteOnly, BthOpcode::RcSendOnly]
    );
}

/// Row 59: the data of a WRITE is visible before the receive completion of a later SEND.
#[test]
fn row_59_write_is_visible_before_the_send_behind_it() {
    let (mut bed, peer, to) = foreign(4 * MTU, Access::ALL);
    for round in 1..20u8 {
        bed.post_recv(peer.qp, &[]);
        let mut psn = bed.query(peer.qp).next_rcv_psn();
        let mut packets = write_message(to, psn, &[round; 4 * MTU]);
        psn += 4;
        packets.push(Pkt::new(BthOpcode::RcSendOnly, psn).ack_req());
        let frames: Vec<Vec<u8>> = packets.iter().map(|pkt| peer.frame(pkt)).collect();
        for frame in &frames {
            // Nothing runs in between except what the arrival itself triggers.
            bed.receive(frame);
            if bed.has_completion(peer.qp.recv_cq) {
                assert_eq!(bed.bytes(to), [round; 4 * MTU]);
            }
        }
        bed.run();
        assert!(bed.one(peer.qp.recv_cq).is_ok());
    }
}

/// Row 59: the same between two functions in one step, with payload by reference.
#[test]
fn row_59_write_is_visible_before_the_send_behind_it_within_the_region() {
    let (mut bed, [a, b], [from, to]) = ends(16 * MTU);
    bed.unwatched();
    for round in 1..20 {
        let data = bed.pattern(from, round);
        bed.post_recv(b, &[]);
        bed.post_all(a, &[Wr::write(from.sge(), to).unsignaled(), Wr::new(Op::Send, &[])]);
        assert!(bed.one(b.recv_cq).is_ok());
        assert_eq!(bed.bytes(to), data);
        assert!(bed.one(a.send_cq).is_ok());
    }
}
