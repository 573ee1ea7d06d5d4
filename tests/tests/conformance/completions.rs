//! Completion queues that change their size.

use super::common::*;

/// Row 55: no completion is lost or doubled when a CQ gets other memory, larger or smaller, empty or not.
#[test]
fn row_55_completions_survive_a_resize() {
    for (log, waiting, used) in [(9, 5, 0), (3, 5, 3), (7, 0, 130), (7, 126, 200), (5, 31, 700)] {
        let mut bed = Bed::cx5();
        let (a, b) = bed.pair(path());
        let from = bed.mr(1, 64, Access::LOCAL);
        let to = bed.mr(2, 64, Access::ALL);
        for _ in 0..used {
            bed.post(a, &Wr::write(from.sge(), to));
            assert!(bed.one(a.send_cq).is_ok());
        }
        let mut posted: Vec<u16> = (0..waiting).map(|_| bed.post(a, &Wr::write(from.sge(), to))).collect();
        bed.resize_cq(a.send_cq, log).expect("MODIFY_CQ");
        let room = (1 << log) - waiting - 1;
        posted.extend((0..room.min(40)).map(|_| bed.post(a, &Wr::write(from.sge(), to))));
        let got: Vec<u16> = bed.completions(a.send_cq).iter().map(|wc| wc.wqe).collect();
        assert_eq!(got, posted, "log {log}, {waiting} waiting");
        assert_eq!((bed.qp_state(a), bed.qp_state(b)), (QpState::Rts, QpState::Rts));
    }
}

/// Row 55: a CQ that does not fit its new memory, or has no room for the mark, stays as it is.
#[test]
fn row_55_a_resize_that_does_not_fit_is_refused() {
    let mut bed = Bed::cx5();
    let (a, _) = bed.pair(path());
    let from = bed.mr(1, 64, Access::LOCAL);
    let to = bed.mr(2, 64, Access::ALL);
    for _ in 0..8 {
        bed.post(a, &Wr::write(from.sge(), to));
    }
    assert!(bed.resize_cq(a.send_cq, 3).is_err(), "eight and the mark are nine");
    assert_eq!(bed.completions(a.send_cq).len(), 8);
    bed.post(a, &Wr::write(from.sge(), to));
    assert!(bed.one(a.send_cq).is_ok());
}
