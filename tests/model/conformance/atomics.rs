//! Atomics, except for duplicates.

use super::common::*;
use devmodel::host::Party;

/// Row 36: a misaligned atomic is an invalid request; memory is unchanged.
#[test]
fn row_36_misaligned_atomic_is_invalid() {
    for opcode in [BthOpcode::RcFetchAdd, BthOpcode::RcCompareSwap] {
        for offset in [1, 4, 7] {
            let (mut bed, peer, on) = foreign(64, Access::ALL);
            let pkt = Pkt::new(opcode, EXPECTS).atomic(on.va + offset, on.key, 1, 0).ack_req();
            assert_eq!(acknowledgement(&bed.from_peer(peer, &pkt)).0, NAK_INVALID, "{opcode:?} at {offset}");
            assert_eq!(bed.bytes(on), [0; 64]);
            assert_eq!(bed.qp_state(peer.qp), QpState::Err);
        }
    }
}

/// Row 37: an atomic on a region without REMOTE_ATOMIC is an access error.
#[test]
fn row_37_atomic_without_permission_is_an_access_error() {
    for opcode in [BthOpcode::RcFetchAdd, BthOpcode::RcCompareSwap] {
        let (mut bed, peer, on) = foreign(64, Access { remote_atomic: false, ..Access::ALL });
        let pkt = Pkt::new(opcode, EXPECTS).atomic(on.va, on.key, 1, 0).ack_req();
        assert_eq!(acknowledgement(&bed.from_peer(peer, &pkt)).0, NAK_ACCESS, "{opcode:?}");
        assert_eq!(bed.bytes(on), [0; 64]);
    }
}

/// The program that owns the memory died a moment ago: the request is lost, as with a host that is switched off.
#[test]
fn an_atomic_on_memory_of_a_dead_program_is_lost() {
    let (mut bed, peer, _) = foreign(64, Access::ALL);
    let pd = bed.state(1).pd;
    let on = bed.mr_with(1, 64, Access::ALL, pd, Some(Party(9)));
    bed.kill(Party(9));
    let pkt = Pkt::new(BthOpcode::RcFetchAdd, EXPECTS).atomic(on.va, on.key, 1, 0).ack_req();
    assert_eq!(bed.from_peer(peer, &pkt), []);
    assert_eq!(bed.qp_state(peer.qp), QpState::Rts);
}

/// Row 9: the effect of an atomic that is not a duplicate, on both sides.
#[test]
fn row_09_atomics_return_the_original_and_change_memory() {
    let mut bed = Bed::cx5();
    let (a, _) = bed.pair(path());
    let (old, on) = (bed.mr(1, 8, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    let word = |bed: &Bed, mr: Mr| u64::from_ne_bytes(bed.bytes(mr)[..8].try_into().expect("8 bytes"));
    bed.fill(on, &40u64.to_ne_bytes());
    for (wr, before, after) in [
        (Wr::fetch_add(old.sge(), on, 2), 40, 42),
        (Wr::compare_swap(old.sge(), on, 42, 7), 42, 7),
        (Wr::compare_swap(old.sge(), on, 42, 9), 7, 7),
        (Wr::fetch_add(old.sge(), on, u64::MAX), 7, 6),
    ] {
        let wc = bed.execute(a, &wr);
        assert!(wc.is_ok());
        assert_eq!(wc.byte_len, 8);
        assert_eq!((word(&bed, old), word(&bed, on)), (before, after), "{:?}", wr.op);
    }
}
