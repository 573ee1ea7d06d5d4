//! Parties stopped at the worst moment: unrelated parties do not wait for them, and connections to functions that they hold survive. The
//! bed fails a test that waits for a party that does not continue.

use devmodel::host::Party;
use ironverbs_tests::bed::*;

const STOPPED: Party = Party(9);

fn impatient() -> Path {
    Path { retry_count: 1, timeout: 8, ..Path::default() }
}

#[test]
fn commands_of_others_do_not_wait_for_a_function_that_is_held() {
    for layer in [Bed::cx5, Bed::infiniband] {
        let mut bed = layer();
        let (a, _) = bed.pair(Path::default());
        let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
        bed.done(a, &Wr::write(from.sge(), to));
        bed.function(3);
        for held in [0, 1, 2] {
            bed.stop_holding(held, STOPPED);
        }
        // Open, use, close, reset: everything that an unrelated program does.
        let qp = bed.qp(3);
        let mr = bed.mr(3, 4096, Access::ALL);
        bed.destroy_mr(mr).expect("a region goes");
        bed.destroy_qp(qp).expect("a queue pair goes");
        bed.reset(3);
        bed.kill(STOPPED);
        bed.done(a, &Wr::write(from.sge(), to));
    }
}

/// A bed with frames by reference, after a WRITE from function 1 to function 2. Returns the memory on function 1.
fn after_a_write() -> (Bed, Mr) {
    let mut bed = Bed::cx5();
    bed.unwatched();
    let (a, _) = bed.pair(Path::default());
    let (from, to) = (bed.mr(1, 4096, Access::LOCAL), bed.mr(2, 4096, Access::ALL));
    bed.done(a, &Wr::write(from.sge(), to));
    (bed, from)
}

/// Frames that refer to memory of function 1 may be in use by the holder of function 2, so the memory must not be freed before.
#[test]
#[should_panic(expected = "waits for party 9")]
fn memory_is_not_taken_away_while_a_peer_may_still_read_it() {
    let (mut bed, from) = after_a_write();
    bed.stop_holding(2, STOPPED);
    let _ = bed.destroy_mr(from);
}

/// After a reset, frames that a function sent earlier tie it to no other function.
#[test]
fn a_reset_function_does_not_wait_for_those_it_once_sent_to() {
    let (mut bed, _) = after_a_write();
    bed.reset(1);
    bed.stop_holding(2, STOPPED);
    bed.function(1);
    let mr = bed.mr(1, 4096, Access::ALL);
    bed.destroy_mr(mr).expect("a region goes");
    bed.reset(1);
}

#[test]
fn a_connection_outlives_a_peer_that_is_stopped_in_the_middle_of_work() {
    for stop in [Bed::stop_holding, Bed::stop_filling] {
        // On an observed wire, so that every frame goes through the receive ring.
        let mut bed = Bed::cx5();
        let (a, _) = bed.pair(impatient());
        let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
        let sent = bed.pattern(from, 7);
        stop(&mut bed, 2, STOPPED);
        bed.post(a, &Wr::write(from.sge(), to));
        bed.advance(10 * S);
        assert_eq!(bed.completions(a.send_cq), [], "neither done nor failed");
        bed.kill(STOPPED);
        bed.advance(10 * MS);
        assert!(bed.one(a.send_cq).is_ok());
        assert_eq!(bed.bytes(to), sent);
    }
}

/// A program that holds a function, is not stopped, and never answers is like any peer that does not answer.
#[test]
fn a_connection_ends_when_the_holder_of_its_peer_runs_and_does_not_answer() {
    let mut bed = Bed::cx5();
    bed.unwatched();
    let (a, _) = bed.pair(impatient());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    bed.stop_holding(2, STOPPED);
    bed.memory.stopped.clear();
    bed.post(a, &Wr::write(from.sge(), to));
    bed.advance(S);
    assert!(!bed.one(a.send_cq).is_ok());
}

/// If a runner worked on functions of unrelated programs, it could be stopped while it holds them.
#[test]
fn functions_of_strangers_are_left_to_their_users() {
    let mut bed = Bed::cx5();
    bed.unwatched();
    let (a, _) = bed.pair(Path::default());
    let (c, d) = (bed.qp(2), bed.qp(3));
    bed.connect(c, d, Path::default());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    let (on, there) = (bed.mr(2, 64, Access::LOCAL), bed.mr(3, 64, Access::ALL));
    bed.memory.serves = Some([1].into());
    // Function 2 is a peer: the sender runs it, and its packets to function 1 come back.
    bed.done(a, &Wr::write(from.sge(), to));
    assert!(bed.memory.left_to_users.is_empty());
    // Frames between functions 2 and 3 do not concern the program that uses function 1.
    bed.post(c, &Wr::write(on.sge(), there));
    assert_eq!(bed.memory.left_to_users, [3, 2]);
}
