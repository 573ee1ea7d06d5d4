//! Queued work when a QP fails.

use super::common::*;
use hwspec::eqe::{CqErrorEvent, CqErrorSyndrome};

/// Row 45: the first failure has its real status; all later requests flush in order, including unsignaled ones.
#[test]
fn row_45_work_behind_a_failure_is_flushed_in_order() {
    let (mut bed, [a, _], [from, to]) = ends(64);
    let wrs = [
        Wr::write(from.sge(), to),
        Wr::write(from.sge(), to).unsignaled(),
        Wr::new(Op::Write { va: to.va, rkey: 0xbad }, &[from.sge()]).unsignaled(),
        Wr::write(from.sge(), to).unsignaled(),
        Wr::write(from.sge(), to),
        Wr::send(from.sge()).unsignaled(),
    ];
    let receives: Vec<u16> = (0..3).map(|_| bed.post_recv(a, &[from.sge()])).collect();
    let posted = bed.post_all(a, &wrs);
    let all = bed.completions(a.send_cq);
    let sends: Vec<_> = all.iter().filter(|wc| wc.is_send()).map(|wc| (wc.wqe, wc.error)).collect();
    let flush = Some(CqeSyndrome::WrFlushErr);
    assert_eq!(
        sends,
        [
            (posted[0], None),
            (posted[2], Some(CqeSyndrome::RemoteAccessErr)),
            (posted[3], flush),
            (posted[4], flush),
            (posted[5], flush)
        ]
    );
    let recvs: Vec<_> = all.iter().filter(|wc| !wc.is_send()).map(|wc| (wc.wqe, wc.error)).collect();
    assert_eq!(recvs, receives.iter().map(|i| (*i, flush)).collect::<Vec<_>>());
    assert!(all.iter().filter(|wc| wc.error == flush).all(|wc| wc.vendor_err == 0xf5));
}

/// Row 45: requests sent before the failure complete before it, even if their acknowledgement is still outstanding.
#[test]
fn row_45_earlier_work_completes_before_the_failure() {
    let (mut bed, peer, from) = foreign(64, Access::LOCAL);
    let posted = bed.post_all(peer.qp, &vec![write_to_peer(from.sge()); 3]);
    bed.from_peer(peer, &nak(NAK_ACCESS, SENDS + 1, 1));
    let got: Vec<_> = bed.completions(peer.qp.send_cq).iter().map(|wc| (wc.wqe, wc.error)).collect();
    assert_eq!(
        got,
        [
            (posted[0], None),
            (posted[1], Some(CqeSyndrome::RemoteAccessErr)),
            (posted[2], Some(CqeSyndrome::WrFlushErr))
        ]
    );
}

/// Checks that one receive and one send request are flushed, in any order.
#[track_caller]
fn assert_flushed(bed: &mut Bed, a: Qp, recv: u16, send: u16) {
    bed.advance(MS);
    let mut got: Vec<_> =
        bed.completions(a.send_cq).iter().map(|wc| (wc.is_send(), wc.wqe, wc.error)).collect();
    got.sort_by_key(|(is_send, ..)| *is_send);
    let flush = Some(CqeSyndrome::WrFlushErr);
    assert_eq!(got, [(false, recv, flush), (true, send, flush)]);
}

/// Row 46: posts to a QP in ERR get flush completions, on both queues.
#[test]
fn row_46_posts_in_err_are_flushed() {
    let (mut bed, [a, _], [mr, _]) = ends(64);
    bed.to_err(a).expect("2ERR_QP");
    bed.take_frames();
    let recv = bed.post_recv(a, &[mr.sge()]);
    let send = bed.post(a, &Wr::send(mr.sge()));
    assert_flushed(&mut bed, a, recv, send);
    assert_eq!(brief(&bed.take_frames()), []);
}

/// Row 46: work that is queued when the QP is moved to ERR is also flushed.
#[test]
fn row_46_move_to_err_flushes_what_is_queued() {
    let (mut bed, peer, mr) = foreign(64, Access::LOCAL);
    bed.post_recv(peer.qp, &[mr.sge()]);
    bed.post_all(peer.qp, &[write_to_peer(mr.sge()), write_to_peer(mr.sge()).unsignaled()]);
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    bed.to_err(peer.qp).expect("2ERR_QP");
    bed.run();
    let all = bed.completions(peer.qp.send_cq);
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|wc| wc.error == Some(CqeSyndrome::WrFlushErr)), "{all:?}");
}

/// Row 46: a move to RESET discards the work without completions, and the QP can be used again.
#[test]
fn row_46_move_to_reset_drops_work_in_silence() {
    let (mut bed, peer, mr) = foreign(64, Access::LOCAL);
    bed.post_recv(peer.qp, &[mr.sge()]);
    bed.post_all(peer.qp, &[write_to_peer(mr.sge()), write_to_peer(mr.sge())]);
    bed.answers();
    bed.to_reset(peer.qp).expect("2RST_QP");
    bed.advance(10 * S);
    assert_eq!(bed.completions(peer.qp.send_cq), []);
    assert_eq!(brief(&bed.answers()), []);
    let peer = bed.foreign_of(peer.qp, path());
    bed.post(peer.qp, &write_to_peer(mr.sge()));
    assert_eq!(brief(&bed.answers()), [(BthOpcode::RcWriteOnly, SENDS)]);
    bed.from_peer(peer, &ack(SENDS, 1));
    assert!(bed.one(peer.qp.send_cq).is_ok());
}

/// Row 47: if a doorbell record is raised after the QP failed, the missing flush completions appear without a doorbell.
#[test]
fn row_47_doorbell_record_raised_in_err_is_flushed() {
    let (mut bed, [a, _], [mr, _]) = ends(64);
    bed.to_err(a).expect("2ERR_QP");
    bed.run();
    assert_eq!(bed.completions(a.send_cq), []);
    let recv = bed.post_recv(a, &[mr.sge()]);
    let send = bed.queue(a, &Wr::send(mr.sge()));
    bed.publish(a);
    assert_flushed(&mut bed, a, recv, send);
}

/// Row 55: a CQ that overflows raises a CQ error event and fails its QPs; no entry is overwritten.
#[test]
fn row_55_cq_overflow_overwrites_nothing() {
    let mut bed = Bed::cx5().with_function(1);
    let cq = bed.cq_of(1, 2);
    let spec = QpSpec { send_cq: Some(cq), ..QpSpec::default() };
    let (a, _) = bed.pair_of([spec, QpSpec::default()], path());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    bed.events(1);
    let posted = bed.post_all(a, &vec![Wr::write(from.sge(), to); 6]);
    bed.advance(MS);
    let events = bed.events(1);
    let overrun = events.iter().filter(|e| e.event_type() == EventType::CqError).find(|e| {
        let event = e.data::<CqErrorEvent>();
        event.cqn().0 == cq.cqn && event.syndrome() == CqErrorSyndrome::Overrun
    });
    assert!(overrun.is_some(), "{events:?}");
    assert_eq!(bed.qp_state(a), QpState::Err);
    assert_eq!(Bed::qp_events(&events, a, EventType::WqCatasError), 1, "{events:?}");
    let kept: Vec<u16> = bed.completions(cq).iter().map(|wc| wc.wqe).collect();
    assert_eq!(kept, posted[..4], "the first four, as they were written");
}

/// Row 56: a CQ armed for solicited events raises one only for solicited completions and errors.
#[test]
fn row_56_solicited_arming_ignores_plain_completions() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.post_recvs(b, 4, &[to.sge()]);
    bed.arm_cq(b.recv_cq, true);
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(completion_events(&mut bed, 2), 0, "not solicited");
    bed.post(a, &Wr::send(from.sge()).solicited());
    assert_eq!(completion_events(&mut bed, 2), 1, "solicited");
    bed.post(a, &Wr::send(from.sge()).solicited());
    assert_eq!(completion_events(&mut bed, 2), 0, "one event for one arming");
    bed.completions(b.recv_cq);
    bed.arm_cq(b.recv_cq, true);
    bed.to_err(b).expect("2ERR_QP");
    bed.run();
    assert_eq!(completion_events(&mut bed, 2), 1, "an error completion");
}

/// Row 56: a CQ armed for any completion raises one event, with an interrupt, for a plain one.
#[test]
fn row_56_plain_arming_tells_of_the_next_completion() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.post_recvs(b, 2, &[to.sge()]);
    bed.arm_cq(b.recv_cq, false);
    // All events so far have been read, so the EQ is armed.
    bed.events(2);
    let before = bed.memory.interrupts.iter().filter(|i| i.fid == 2).count();
    bed.post_all(a, &[Wr::send(from.sge()), Wr::send(from.sge())]);
    assert_eq!(bed.memory.interrupts.iter().filter(|i| i.fid == 2).count(), before + 1);
    assert_eq!(completion_events(&mut bed, 2), 1);
}

/// Row 56: a completion raises one event, even if the CQ is armed again before it is polled; one that arrives while the CQ is not armed
/// raises one at the next arming.
#[test]
fn row_56_each_completion_is_notified_exactly_once() {
    let (mut bed, [a, b], [from, to]) = ends(64);
    bed.post_recvs(b, 3, &[to.sge()]);
    bed.arm_cq(b.recv_cq, false);
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(completion_events(&mut bed, 2), 1);
    bed.arm_cq(b.recv_cq, false);
    assert_eq!(completion_events(&mut bed, 2), 0, "notified already");
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(completion_events(&mut bed, 2), 1, "the next one");
    bed.post(a, &Wr::send(from.sge()));
    assert_eq!(completion_events(&mut bed, 2), 0, "not armed");
    bed.arm_cq(b.recv_cq, false);
    assert_eq!(completion_events(&mut bed, 2), 1, "came between the event and the arming");
    assert_eq!(bed.completions(b.recv_cq).len(), 3);
    bed.arm_cq(b.recv_cq, false);
    assert_eq!(completion_events(&mut bed, 2), 0, "all polled");
}
