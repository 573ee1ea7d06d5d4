//! WRITE with immediate data, SEND with invalidate.

use super::common::*;

/// Row 51: a WRITE with immediate consumes its receive WQE at the last packet; byte_len is that of the RETH.
#[test]
fn row_51_write_imm_takes_a_receive_at_its_last_packet() {
    let (mut bed, peer, to) = foreign(3 * MTU, Access::ALL);
    let packets = write_imm_message(to, EXPECTS, &[4; 2 * MTU + 1], 0x1122_3344);
    bed.from_peer(peer, &packets[0]);
    bed.from_peer(peer, &packets[1]);
    assert_eq!(bed.completions(peer.qp.recv_cq), []);
    // Posted now, which is early enough for the last packet.
    bed.post_recv(peer.qp, &[]);
    bed.from_peer(peer, &packets[2]);
    let wc = bed.one(peer.qp.recv_cq);
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (CqeOpcode::RespWrImm, 2 * MTU as u32 + 1, 0x1122_3344));
    assert_eq!(bed.bytes(to)[..2 * MTU + 1], [4; 2 * MTU + 1]);
}

/// Row 51: end to end, also with SEND's immediate data.
#[test]
fn row_51_immediate_data_arrive_as_they_were_sent() {
    let (mut bed, [a, b], [x, y]) = ends(2 * MTU);
    for (op, opcode) in [
        (Op::SendImm(0xa1b2_c3d4), CqeOpcode::RespSendImm),
        (Op::WriteImm { va: y.va, rkey: y.key, imm: 0xa1b2_c3d4 }, CqeOpcode::RespWrImm),
    ] {
        for len in [1, 2 * MTU] {
            bed.post_recv(b, &[y.sge()]);
            bed.done(a, &Wr::new(op, &[x.part(0, len as u32)]));
            let wc = bed.one(b.recv_cq);
            assert_eq!((wc.opcode, wc.imm, wc.byte_len), (opcode, 0xa1b2_c3d4, len as u32));
        }
    }
}

/// Row 51: after the completion of a SEND with invalidate the key is invalid.
#[test]
fn row_51_invalidated_key_is_dead() {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path());
    let x = bed.mr(1, 64, Access::LOCAL);
    let y = bed.mr(2, 64, Access { remote_invalidate: true, ..Access::ALL });
    let inbox = bed.mr(2, 64, Access::LOCAL);
    bed.fill(x, &[6; 64]);
    bed.done(a, &Wr::write(x.part(0, 8), y));
    bed.post_recv(b, &[inbox.sge()]);
    bed.done(a, &Wr::new(Op::SendInv(y.key), &[x.part(0, 4)]));
    let wc = bed.one(b.recv_cq);
    assert_eq!((wc.opcode, wc.imm, wc.byte_len), (CqeOpcode::RespSendInv, y.key, 4));
    bed.post(a, &Wr::write(x.sge(), y));
    assert_requester_failed(&mut bed, a, CqeSyndrome::RemoteAccessErr);
    assert_eq!(bed.bytes(y)[8..], [0; 56]);
}
