//! Completion queues: overrun, moderation, timestamps and resizing.

use super::common::*;
use hwspec::{
    cmd::{CmdOut, Opcode, cq::*},
    context::cq::CqContext,
};

fn moderate(bed: &mut Bed, cq: Cq, count: u16, period: u16) {
    let context = CqContext::with(|s| s.cq_max_count(count).cq_period(period));
    let mut input = ModifyCqIn::zeroed();
    input.set().cqn(cq.cqn).cq_context(context).modify_field_select_resize_field_select(3u32.to_be_bytes());
    bed.command::<_, CmdOut>(cq.fid, Opcode::ModifyCq, &input).expect("MODIFY_CQ");
}

/// Row 55: if overruns are ignored, unpolled entries are overwritten and nothing fails.
#[test]
fn row_55_an_overrun_that_is_ignored_harms_nobody() {
    const OVERRUN: u32 = 1 << 2;
    let mut bed = Bed::cx5().with_function(1);
    let cq = bed.cq_of(1, 2);
    let context = CqContext::with(|s| s.oi(true));
    let input = ModifyCqIn::with(|s| {
        s.cqn(cq.cqn).cq_context(context).modify_field_select_resize_field_select(OVERRUN.to_be_bytes())
    });
    bed.command::<_, CmdOut>(1, Opcode::ModifyCq, &input).expect("MODIFY_CQ");
    let (a, _) = bed.pair_of([QpSpec { send_cq: Some(cq), ..QpSpec::default() }, QpSpec::default()], path());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    bed.events(1);
    bed.post_all(a, &vec![Wr::write(from.sge(), to); 6]);
    bed.advance(MS);
    assert_eq!(bed.events(1), []);
    assert_eq!(bed.qp_state(a), QpState::Rts);
}

/// PRM, `cqc.cc`: every completion of a collapsed CQ goes to its first entry. A program reads there how far the queue is.
#[test]
fn a_collapsed_queue_has_its_last_completion_in_the_first_entry() {
    let mut bed = Bed::cx5().with_function(1);
    let cq = bed.cq_with(1, 2, |c| {
        c.set().cc(true).oi(true);
    });
    let (a, _) = bed.pair_of([QpSpec { send_cq: Some(cq), ..QpSpec::default() }, QpSpec::default()], path());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    bed.post_all(a, &vec![Wr::write(from.sge(), to); 10]);
    assert_eq!(bed.poll_raw(cq).expect("a completion").wqe_counter(), 9);
    assert!(bed.poll_raw(cq).is_none(), "the other entries stay as they were");
    assert_eq!(bed.qp_state(a), QpState::Rts);
}

/// PRM, CQE: a QP with a user index has it in all its completions, on both sides and in errors.
#[test]
fn completions_carry_the_user_index_of_their_queue_pair() {
    let mut bed = Bed::cx5();
    let spec = |user_index| QpSpec { user_index, ..QpSpec::default() };
    let (a, b) = bed.pair_of([spec(0x1234), spec(0x00_ffff)], path());
    let (from, to) = (bed.mr(1, 64, Access::LOCAL), bed.mr(2, 64, Access::ALL));
    bed.post_recv(b, &[to.sge()]);
    bed.post(a, &Wr::send(from.sge()));
    let index = |bed: &mut Bed, cq| bed.poll_raw(cq).expect("a completion").srqn_uidx();
    assert_eq!((index(&mut bed, a.send_cq), index(&mut bed, b.recv_cq)), (0x1234, 0xffff));
    bed.post_recv(b, &[to.sge()]);
    bed.to_err(b).expect("2ERR_QP");
    bed.run();
    assert_eq!(index(&mut bed, b.recv_cq), 0xffff);
}

/// Row 56: a moderated CQ raises an event after that many completions, or after its period if there are fewer.
#[test]
fn row_56_moderated_events_wait_for_company_or_time() {
    const PERIOD: u16 = 100;
    let us = MS / 1000;
    let (mut bed, [a, _], [from, to]) = ends(64);
    moderate(&mut bed, a.send_cq, 4, PERIOD);
    bed.arm_cq(a.send_cq, false);
    completion_events(&mut bed, 1);
    let wr = || Wr::write(from.sge(), to);
    bed.post_all(a, &[wr(), wr(), wr()]);
    bed.advance(u64::from(PERIOD) * us / 2);
    assert_eq!(completion_events(&mut bed, 1), 0, "three of four, half of the time");
    bed.post(a, &wr());
    assert_eq!(completion_events(&mut bed, 1), 1, "the fourth");
    bed.advance(MS);
    assert_eq!(completion_events(&mut bed, 1), 0, "no second event when the period ends");
    assert_eq!(bed.completions(a.send_cq).len(), 4);
    bed.arm_cq(a.send_cq, false);
    bed.post(a, &wr());
    bed.advance(u64::from(PERIOD) * us - us);
    assert_eq!(completion_events(&mut bed, 1), 0, "one, nearly the whole period");
    bed.advance(2 * us);
    assert_eq!(completion_events(&mut bed, 1), 1, "one, after the period");
}

/// Row 56: moderation also applies to completions that came before the CQ was armed; a CQ's timer is removed with it.
#[test]
fn row_56_arming_late_is_moderated_as_well() {
    let (mut bed, [a, _], [from, to]) = ends(64);
    moderate(&mut bed, a.send_cq, 2, 1000);
    completion_events(&mut bed, 1);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.arm_cq(a.send_cq, false);
    assert_eq!(completion_events(&mut bed, 1), 0);
    bed.advance(2 * MS);
    assert_eq!(completion_events(&mut bed, 1), 1);
    bed.arm_cq(a.send_cq, false);
    bed.post(a, &Wr::write(from.sge(), to));
    bed.destroy_qp(a).expect("DESTROY_QP");
    bed.completions(a.send_cq);
    bed.destroy_cq(a.send_cq).expect("DESTROY_CQ");
    assert_eq!(bed.next_timer(), None);
    bed.advance(2 * MS);
    assert_eq!(completion_events(&mut bed, 1), 0, "of a CQ that is gone");
}

/// Every CQE without an error has a timestamp in nanoseconds, by the clock of the internal timer.
#[test]
fn completions_bear_the_time_of_the_internal_timer() {
    const TIMER: [u64; 2] = [0x1000, 0x1004];
    let (mut bed, [a, b], [from, to]) = ends(64);
    let clock = |bed: &mut Bed| {
        let [high, low] = TIMER.map(|at| bed.read32(1, at));
        u64::from(high) << 32 | u64::from(low)
    };
    let mut last = 0;
    for _ in 0..3 {
        bed.advance(7 * S);
        bed.post_recv(b, &[to.sge()]);
        bed.post(a, &Wr::send(from.sge()));
        let now = clock(&mut bed);
        let stamps = [a.send_cq, b.recv_cq].map(|cq| bed.poll_raw(cq).expect("a completion").timestamp());
        assert!(now > last && now == bed.now() / 1000);
        assert_eq!(stamps, [now, now]);
        last = now;
    }
}

/// Row 55: no completion is lost or duplicated when a CQ is resized, larger or smaller, empty or not.
#[test]
fn row_55_completions_survive_a_resize() {
    for (log, waiting, used) in [(9, 5, 0), (3, 5, 3), (7, 0, 130), (7, 126, 200), (5, 31, 700)] {
        let (mut bed, [a, b], [from, to]) = ends(64);
        for _ in 0..used {
            bed.done(a, &Wr::write(from.sge(), to));
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

/// Row 55: if the entries do not fit the new memory, or there is no room for the resize CQE, the CQ stays as it is.
#[test]
fn row_55_a_resize_that_does_not_fit_is_refused() {
    let (mut bed, [a, _], [from, to]) = ends(64);
    for _ in 0..8 {
        bed.post(a, &Wr::write(from.sge(), to));
    }
    assert!(bed.resize_cq(a.send_cq, 3).is_err(), "eight and the mark are nine");
    assert_eq!(bed.completions(a.send_cq).len(), 8);
    bed.done(a, &Wr::write(from.sge(), to));
}

/// Requests that send nothing wait for no acknowledgement: one doorbell executes as many as fit a queue, and each completes.
#[test]
fn a_doorbell_for_a_thousand_requests_that_send_nothing_completes_them_all() {
    let mut bed = Bed::cx5().with_function(1);
    let cq = bed.cq_of(1, 10);
    let spec = QpSpec { log_sq: 10, send_cq: Some(cq), ..QpSpec::default() };
    let (a, _) = bed.pair_of([spec, QpSpec::default()], path());
    bed.arm_cq(cq, false);
    completion_events(&mut bed, 1);
    bed.post_all(a, &vec![Wr::new(Op::Nop, &[]); 1000]);
    let done: Vec<_> = bed.completions(cq).iter().map(|wc| (wc.wqe, wc.error)).collect();
    assert_eq!(done, (0..1000).map(|wqe| (wqe, None)).collect::<Vec<_>>());
    assert_eq!(completion_events(&mut bed, 1), 1);
    assert_eq!(bed.qp_state(a), QpState::Rts);
}
