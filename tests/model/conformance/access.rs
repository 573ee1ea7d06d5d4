//! Keys, bounds and permissions, on both sides.

use super::common::*;
use devmodel::Conformance;

/// Requests 8 bytes at `offset` of the memory, with its key changed in the bits `change`, and checks that this gets an access NAK and
/// changes nothing. `i` is 0 for a WRITE, 1 for a READ, 2 for a FETCH_ADD.
#[track_caller]
fn assert_access_nak(i: usize, (mut bed, peer, mr): (Bed, Peer, Mr), offset: i64, change: u32) {
    let (va, key) = (mr.va.wrapping_add_signed(offset), mr.key ^ change);
    let opcode = [BthOpcode::RcWriteOnly, BthOpcode::RcReadRequest, BthOpcode::RcFetchAdd][i];
    let pkt = match opcode {
        BthOpcode::RcFetchAdd => Pkt::new(opcode, EXPECTS).atomic(va, key, 1, 0).ack_req(),
        BthOpcode::RcReadRequest => Pkt::new(opcode, EXPECTS).reth(va, key, 8),
        _ => Pkt::new(opcode, EXPECTS).reth(va, key, 8).payload(&[1; 8]).ack_req(),
    };
    let answers = bed.from_peer(peer, &pkt);
    assert_eq!(acknowledgement(&answers).0, NAK_ACCESS, "{opcode:?} at {offset}, key changed by {change:#x}");
    assert_responder_failed(&mut bed, peer.qp, EventType::WqAccessError);
    assert_eq!(bed.bytes(mr), [0; 64]);
}

/// Row 25: a key that does not exist, or that has another variant.
#[test]
fn row_25_bad_rkey_is_an_access_error() {
    for i in 0..3 {
        for change in [0x0000_0001, 0x0000_4000] {
            assert_access_nak(i, foreign(64, Access::ALL), 0, change);
        }
    }
}

/// Row 25: out of bounds by one byte at either end, and an address range that wraps.
#[test]
fn row_25_out_of_bounds_is_an_access_error() {
    for i in 0..2 {
        for offset in [-8i64, -1, 57, 64, i64::MAX] {
            assert_access_nak(i, foreign(64, Access::ALL), offset, 0);
        }
    }
}

/// Row 25: a key of another protection domain.
#[test]
fn row_25_other_protection_domain_is_an_access_error() {
    for i in 0..3 {
        let (mut bed, peer, _) = foreign(64, Access::ALL);
        let pd = bed.pd(1);
        let other = bed.mr_with(1, 64, Access::ALL, pd, None);
        assert_access_nak(i, (bed, peer, other), 0, 0);
    }
}

/// Row 25: a key of another function does not exist here.
#[test]
fn row_25_key_of_another_function_is_an_access_error() {
    for i in 0..3 {
        let (mut bed, peer, _) = foreign(64, Access::ALL);
        bed.function(2);
        let other = bed.mr(2, 64, Access::ALL);
        assert_access_nak(i, (bed, peer, other), 0, 0);
    }
}

/// Row 25: a region that does not permit the operation.
#[test]
fn row_25_region_without_permission_is_an_access_error() {
    let none = [
        Access { remote_write: false, ..Access::ALL },
        Access { remote_read: false, ..Access::ALL },
        Access { remote_atomic: false, ..Access::ALL },
    ];
    for (i, access) in none.into_iter().enumerate() {
        assert_access_nak(i, foreign(64, access), 0, 0);
    }
}

/// Row 25: the requester fails with REM_ACCESS_ERR, vendor_err 0x88.
#[test]
fn row_25_access_error_fails_the_requester() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.events(2);
    bed.post(a, &Wr::new(Op::Write { va: to.va + 8, rkey: to.key }, &[from.sge()]));
    let wc = assert_requester_failed(&mut bed, a, CqeSyndrome::RemoteAccessErr);
    assert_eq!(wc.vendor_err, 0x88);
    assert_responder_failed(&mut bed, b, EventType::WqAccessError);
}

fn write_that_ends_outside(profile: Conformance) -> Vec<u8> {
    let config = Config { profile, ..Config::default() };
    let (mut bed, peer, to) = foreign_on(config, path(), 3 * MTU, Access::ALL);
    let packets = write_message(to, EXPECTS, &[7; 4 * MTU]);
    let answers: Vec<Captured> = packets.iter().flat_map(|pkt| bed.from_peer(peer, pkt)).collect();
    assert_eq!(acknowledgement(&answers).0, NAK_ACCESS);
    assert_eq!(bed.qp_state(peer.qp), QpState::Err);
    bed.bytes(to)
}

/// Row 26, `cx5`: a WRITE that ends outside its region: the packets before the fault are written.
#[test]
fn row_26_write_that_ends_outside_is_written_up_to_the_fault_on_cx5() {
    assert_eq!(write_that_ends_outside(Conformance::Cx5), [7; 3 * MTU]);
}

/// Row 26, `ibta`: a WRITE that ends outside its region: nothing is written.
#[test]
fn row_26_write_that_ends_outside_is_not_written_on_ibta() {
    assert_eq!(write_that_ends_outside(Conformance::Ibta), [0; 3 * MTU]);
}

/// Row 27: a responder QP without the access right: NAK 0x61, REM_INV_REQ, vendor_err 0x8a.
#[test]
fn row_27_qp_without_the_right_is_an_invalid_request() {
    for i in 0..4 {
        let mut bed = Bed::cx5();
        let p = path();
        let no_atomics = Path { remote_atomic: false, ..p };
        let lacking =
            [Path { remote_write: false, ..p }, Path { remote_read: false, ..p }, no_atomics, no_atomics];
        let (a, b) = (bed.qp(1), bed.qp(2));
        bed.connect_each([a, b], [p, lacking[i].back()]);
        let (x, y) = (bed.mr(1, 8, Access::ALL), bed.mr(2, 8, Access::ALL));
        let swap = Wr::compare_swap(x.sge(), y, 0, 1);
        let wrs = [Wr::write(x.sge(), y), Wr::read(x.sge(), y), Wr::fetch_add(x.sge(), y, 1), swap];
        bed.fill(x, &[9; 8]);
        bed.post(a, &wrs[i]);
        let naks: Vec<_> = bed.take_frames().iter().filter_map(|f| f.syndrome()).collect();
        assert_eq!(naks, [NAK_INVALID]);
        let wc = assert_requester_failed(&mut bed, a, CqeSyndrome::RemoteInvalReqErr);
        assert_eq!(wc.vendor_err, 0x8a);
        assert_eq!(bed.bytes(y), [0; 8]);
        assert_eq!(bed.qp_state(b), QpState::Err);
    }
}

/// Row 28: a WRITE or READ of no bytes succeeds with any key; the READ is answered by one empty ONLY response.
#[test]
fn row_28_zero_bytes_need_no_key() {
    let (mut bed, peer, _) = foreign(64, Access::LOCAL);
    let answers = bed.from_peer(
        peer,
        &Pkt::new(BthOpcode::RcWriteOnly, EXPECTS).reth(0xdead_0000, 0xbad0_0bad, 0).ack_req(),
    );
    assert_eq!(acknowledgement(&answers), (ACK, EXPECTS, 1));
    let answers = bed
        .from_peer(peer, &Pkt::new(BthOpcode::RcReadRequest, EXPECTS + 1).reth(0xdead_0000, 0xbad0_0bad, 0));
    assert_eq!(brief(&answers), [(BthOpcode::RcReadRespOnly, EXPECTS + 1)]);
    assert!(answers[0].payload().is_empty());
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}

/// Row 28: the same at the requester.
#[test]
fn row_28_zero_bytes_complete_at_the_requester() {
    let mut bed = Bed::cx5();
    let (a, _) = bed.pair(path());
    let wrs = [Op::Write { va: 1, rkey: 0xbad }, Op::Read { va: 1, rkey: 0xbad }].map(|op| Wr::new(op, &[]));
    bed.post_all(a, &wrs);
    let done = bed.completions(a.send_cq);
    assert_eq!(done.iter().filter(|wc| wc.is_ok()).count(), 2, "{done:?}");
}

/// Row 29: a SEND of no bytes consumes a receive WQE; byte_len is 0.
#[test]
fn row_29_zero_byte_send_uses_a_receive() {
    let mut bed = Bed::cx5();
    let (a, b) = bed.pair(path());
    bed.post_recv(b, &[]);
    bed.done(a, &Wr::new(Op::Send, &[]));
    let wc = bed.one(b.recv_cq);
    assert_eq!((wc.opcode, wc.byte_len, wc.wqe), (CqeOpcode::RespSend, 0, 0));
}

/// Row 33: a bad lkey in the responder's receive: NAK 0x63, LOC_PROT_ERR there, REM_OP_ERR at the requester.
#[test]
fn row_33_bad_lkey_in_the_receive_is_an_operation_error() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.post_recv(b, &[Sge { lkey: to.key ^ 0x100_0000, ..to.sge() }]);
    bed.post(a, &Wr::send(from.sge()));
    let naks: Vec<_> = bed.take_frames().iter().filter_map(|f| f.syndrome()).collect();
    assert_eq!(naks, [NAK_OPERATION]);
    assert_requester_failed(&mut bed, a, CqeSyndrome::RemoteOpErr);
    assert_eq!(bed.one(b.recv_cq).error, Some(CqeSyndrome::LocalProtErr));
    assert_eq!(bed.qp_state(b), QpState::Err);
}

/// Row 33: a receive into a region without local write has the same result.
#[test]
fn row_33_receive_into_read_only_memory_is_an_operation_error() {
    let (mut bed, peer, to) = foreign(64, Access::LOCAL_READ);
    bed.post_recv(peer.qp, &[to.sge()]);
    let answers = bed.from_peer(peer, &Pkt::new(BthOpcode::RcSendOnly, EXPECTS).payload(&[1; 8]).ack_req());
    assert_eq!(acknowledgement(&answers).0, NAK_OPERATION);
    assert_eq!(bed.one(peer.qp.recv_cq).error, Some(CqeSyndrome::LocalProtErr));
    assert_eq!(bed.bytes(to), [0; 64]);
}

/// Row 34: the requester's own bad lkey: LOC_PROT_ERR, vendor_err 0x52, QP in ERR, nothing sent.
#[test]
fn row_34_bad_lkey_of_the_requester_is_a_protection_error() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post(peer.qp, &Wr::send(Sge { lkey: from.key ^ 0x100_0000, ..from.sge() }));
    let wc = assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::LocalProtErr);
    assert_eq!(wc.vendor_err, 0x52);
    assert_eq!(brief(&bed.answers()), []);
}

/// Row 34: an entry longer than its region: LOC_PROT_ERR, vendor_err 0x53.
#[test]
fn row_34_entry_longer_than_its_region_is_a_protection_error() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post(peer.qp, &Wr::send(from.part(0, 65)));
    let wc = assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::LocalProtErr);
    assert_eq!(wc.vendor_err, 0x53);
}

/// Row 35: a READ into a region without local write: the request is sent; then LOC_PROT_ERR, vendor_err 0x33.
#[test]
fn row_35_read_into_read_only_memory_fails_after_the_request() {
    let mut bed = Bed::cx5();
    let (a, _) = bed.pair(path());
    let (into, from) = (bed.mr(1, 64, Access::LOCAL_READ), bed.mr(2, 64, Access::ALL));
    bed.pattern(from, 1);
    bed.post(a, &Wr::read(into.sge(), from));
    let frames = bed.take_frames();
    assert_eq!(frames.first().map(|f| f.opcode()), Some(BthOpcode::RcReadRequest));
    let wc = assert_requester_failed(&mut bed, a, CqeSyndrome::LocalProtErr);
    assert_eq!(wc.vendor_err, 0x33);
    assert_eq!(bed.bytes(into), [0; 64]);
}

/// Row 61: a region deregistered in the middle of a WRITE to it: NAK 0x62, and no access afterwards.
#[test]
fn row_61_dereg_in_the_middle_of_a_write_ends_access() {
    let (mut bed, peer, to) = foreign(4 * MTU, Access::ALL);
    let packets = write_message(to, EXPECTS, &[7; 4 * MTU]);
    bed.from_peer(peer, &packets[0]);
    bed.from_peer(peer, &packets[1]);
    bed.destroy_mr(to).expect("DESTROY_MKEY");
    let kept = bed.bytes(to);
    assert_eq!(kept[..MTU], [7; MTU]);
    let answers = bed.from_peer(peer, &packets[2]);
    assert_eq!(acknowledgement(&answers).0, NAK_ACCESS);
    bed.from_peer(peer, &packets[3]);
    assert_eq!(bed.bytes(to), kept);
}

/// Row 61: a region deregistered while its own side sends from it: LOC_PROT_ERR, and nothing more is sent from it.
#[test]
fn row_61_dereg_of_the_source_ends_in_a_protection_error() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    bed.post(peer.qp, &write_to_peer(from.sge()));
    assert_eq!(bed.answers().len(), 1);
    bed.destroy_mr(from).expect("DESTROY_MKEY");
    // The retransmission needs the memory again.
    assert!(bed.advance_until(4 * timeout(14), |b| b.has_completion(peer.qp.send_cq)));
    assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::LocalProtErr);
    assert_eq!(brief(&bed.answers()), []);
}

/// Row 61: a region deregistered while a READ fills it: LOC_PROT_ERR, and no write after the deregistration returned.
#[test]
fn row_61_dereg_of_a_read_destination_ends_in_a_protection_error() {
    let (mut bed, peer, into) = foreign(2 * MTU, Access::LOCAL);
    bed.post(peer.qp, &read_from_peer(into.sge()));
    bed.from_peer(peer, &read_response(BthOpcode::RcReadRespFirst, SENDS, 1));
    bed.destroy_mr(into).expect("DESTROY_MKEY");
    bed.from_peer(peer, &read_response(BthOpcode::RcReadRespLast, SENDS + 1, 1));
    assert_requester_failed(&mut bed, peer.qp, CqeSyndrome::LocalProtErr);
    assert_eq!(bed.bytes(into)[MTU..], [0; MTU]);
}
