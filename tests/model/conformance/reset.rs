//! Functions reset in the middle of a transfer.

use super::common::*;
use devmodel::host::Party;

/// Returns two functions with a long WRITE outstanding: everything after its first packets is lost until the wire is repaired.
fn under_way() -> (Bed, Qp, Qp, Mr) {
    let (mut bed, [a, b], [from, to]) = ends_on(Path { retry_count: 2, timeout: 10, ..path() }, 32 * MTU);
    bed.pattern(from, 1);
    bed.wire().plan(Filter::from(1), 8, u32::MAX, Fault::Drop);
    bed.post(a, &Wr::write(from.sge(), to));
    assert!(!bed.has_completion(a.send_cq));
    assert_ne!(bed.bytes(to)[..MTU], [0; MTU], "the first packets have arrived");
    bed.wire().heal();
    (bed, a, b, to)
}

/// Checks that the requester fails with RETRY_EXC after its peer was reset.
#[track_caller]
fn assert_peer_gone(bed: &mut Bed, a: Qp) {
    assert!(bed.advance_until(10 * S, |b| b.has_completion(a.send_cq)));
    assert_requester_failed(bed, a, CqeSyndrome::TransportRetryExcErr);
}

/// Row 62: after a function level reset the function does no DMA, and the peer fails with RETRY_EXC.
#[test]
fn row_62_flr_ends_dma_and_the_peer_sees_retry_exc() {
    let (mut bed, a, b, to) = under_way();
    bed.reset(2);
    let transfers = bed.memory.transfers.get(&2).copied();
    let (kept, cq) = (bed.bytes(to), b.recv_cq);
    assert_peer_gone(&mut bed, a);
    bed.advance(S);
    assert_eq!(bed.memory.transfers.get(&2).copied(), transfers, "no transfer after the reset");
    assert_eq!(bed.bytes(to), kept);
    assert!(!bed.has_completion(cq));
}

/// Row 62: the same when VFs are disabled.
#[test]
fn row_62_vf_disable_ends_dma_and_everything_else() {
    let (mut bed, _, _, to) = under_way();
    bed.set_vfs(0);
    let transfers: u64 = bed.memory.transfers.values().sum();
    let kept = bed.bytes(to);
    bed.advance(10 * S);
    assert_eq!(bed.memory.transfers.values().sum::<u64>(), transfers, "no transfer after VF disable");
    assert_eq!(bed.bytes(to), kept);
    assert_eq!(bed.config_read(1, 0, 4), u32::MAX, "VF 1 is gone");
}

/// Row 62: after a reset of the sender its memory is no longer read for packets on the way.
#[test]
fn row_62_flr_of_the_sender_ends_its_transfers() {
    let (mut bed, _, b, _) = under_way();
    bed.reset(1);
    let transfers = bed.memory.transfers.get(&1).copied();
    bed.advance(S);
    assert_eq!(bed.memory.transfers.get(&1).copied(), transfers);
    assert_eq!(bed.qp_state(b), QpState::Rts, "a silent peer is no error for a responder");
}

/// A connection from function 1 to function 2, with QP and memory of another program that alone can access that memory.
fn of_two_programs(bed: &mut Bed, path: Path) -> (Qp, Qp, Mr) {
    let a = bed.qp(1);
    bed.memory.set_party(Party(2));
    let b = bed.qp(2);
    let to = bed.mr_with(2, 4096, Access::ALL, bed.state(2).pd, Some(Party(2)));
    bed.memory.set_party(Party(1));
    bed.connect(a, b, path);
    (a, b, to)
}

/// Row 62: with payload by reference, frames waiting for another program no longer refer to the memory of a function that was reset.
#[test]
fn row_62_flr_leaves_no_references_to_its_memory() {
    let mut bed = Bed::cx5();
    bed.unwatched();
    bed.function(1);
    bed.function(2);
    let (a, b, to) = of_two_programs(&mut bed, Path { mtu: 4096, ..Path::default() });
    let from = bed.mr(1, 4096, Access::LOCAL);
    bed.pattern(from, 1);
    bed.memory.unreachable.insert(2);
    bed.queue(a, &Wr::write(from.sge(), to));
    bed.publish(a);
    bed.doorbell(a);
    bed.run_rounds(20);
    assert!(bed.memory.woken.contains(&Party(2)), "the frame waits for its program");
    bed.reset(1);
    let transfers = bed.memory.transfers.get(&1).copied();
    bed.memory.set_party(Party(2));
    bed.run_rounds(100);
    bed.advance(S);
    assert_eq!(bed.memory.transfers.get(&1).copied(), transfers, "no transfer after the reset");
    assert_eq!(bed.qp_state(b), QpState::Rts);
}

/// Row 62 (the same wait, without a reset): a frame waits if only the receiver's program can process it, and is then executed.
#[test]
fn row_62_work_waits_for_the_program_that_can_do_it() {
    let mut bed = Bed::cx5().with_function(2);
    let (a, _, to) = of_two_programs(&mut bed, path());
    let from = bed.mr(1, 4096, Access::LOCAL);
    let data = bed.pattern(from, 1);
    bed.memory.unreachable.insert(2);
    bed.queue(a, &Wr::write(from.sge(), to));
    bed.publish(a);
    bed.doorbell(a);
    bed.run_rounds(20);
    assert!(!bed.has_completion(a.send_cq));
    assert_eq!(bed.bytes(to), [0; 4096]);
    bed.memory.set_party(Party(2));
    bed.advance(MS);
    assert!(bed.one(a.send_cq).is_ok());
    assert_eq!(bed.bytes(to), data);
}

/// Row 62: after the reset the function can be initialized and used again.
#[test]
fn row_62_function_works_again_after_flr() {
    let (mut bed, a, _, _) = under_way();
    bed.reset(2);
    assert_peer_gone(&mut bed, a);
    let (a, _) = bed.pair(path());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    let data = bed.pattern(from, 9);
    bed.done(a, &Wr::write(from.sge(), to));
    assert_eq!(bed.bytes(to), data);
}
