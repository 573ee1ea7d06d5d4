//! Triggers of work on a queue pair: a doorbell, a timer, its turn to send.

use super::{
    congestion, doorbell, ethernet, flush, pace, requester, responses, service, step::Step, timers,
    work::Work, xrc,
};
use crate::{host::Party, region::Func, state::QpRow, transport::Timer};
use hwspec::context::{QpState, ServiceType};

/// Handles a send doorbell, of a QP or of a send queue without one.
#[inline(never)]
pub(crate) fn ring(func: &mut Func<'_>, step: &mut Step<'_>, qpn: u32, uar: u32) {
    let qp = func.index::<QpRow>(qpn);
    if qp.and_then(|qp| with(func, step, qp, |w| doorbell::ring(w, uar))).is_none() {
        ethernet::ring(func, step, qpn, uar);
    }
}

/// Runs the QP's turn to send.
#[inline(always)]
pub(crate) fn take_turn(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32) {
    with(func, step, qp, |w| w.execute = true);
}

/// Handles an expired timer of the QP.
#[inline(always)]
pub(crate) fn expire(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32, timer: Timer) {
    with(func, step, qp, |w| timers::expire(w, timer));
}

/// Flushes a QP in error, which owes completions.
#[inline(always)]
pub(crate) fn flush_qp(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32) {
    with(func, step, qp, |w| {
        if w.state() == QpState::Err {
            flush::enter_error(w);
        }
    });
}

/// Runs `stage` on QP `qp`, followed by the QP's turn to send if the stage requests it. `None` if there is no
/// such QP.
#[inline(always)]
pub(crate) fn with(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    qp: u32,
    stage: impl FnOnce(&mut Work<'_, '_, '_>),
) -> Option<()> {
    Work::on(func, step, qp, |w| {
        let party = Party(w.q.head.party);
        // An XRC target has no memory of its own, and may outlive its creator.
        if !w.step.host.reaches(party) && !w.q.is_xrc_target() {
            w.step.blocked = Some(party);
            return;
        }
        stage(w);
        if std::mem::take(&mut w.execute) {
            execute(w);
        }
    })
}

/// Runs the turn of a QP in error.
#[cold]
fn execute_in_error(w: &mut Work<'_, '_, '_>) {
    // Over XRC, the receive in use belongs to the SRQ that was named, and its completion goes to that SRQ's CQ.
    if w.q.service != ServiceType::Xrc.raw() || xrc::select(w, w.q.xrc_srqn) {
        flush::run(w);
    }
}

/// Runs the QP's turn to send: responses before requests.
#[inline]
fn execute(w: &mut Work<'_, '_, '_>) {
    if w.state() == QpState::Err {
        return execute_in_error(w);
    }
    if w.step.takes_turns {
        return answer(w);
    }
    let mut budget = w.room().min(w.step.quantum);
    if w.step.region.is_switched() {
        budget = pace::budget(w, budget);
    }
    if budget == 0 {
        // The peer must consume the waiting frames before more are sent.
        w.ready = true;
        w.step.yielded = true;
        return;
    }
    match w.q.requester.is_limited() {
        true => congestion::take_turn(w, budget, send),
        false => send(w, &mut budget),
    }
}

/// Sends the responses that the peer waits for; requests are sent in the next turn.
#[cold]
fn answer(w: &mut Work<'_, '_, '_>) {
    let answers = matches!(w.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr);
    if !answers || w.q.service != ServiceType::Rc.raw() {
        w.ready = true;
        return;
    }
    if responses::waiting(w) {
        let mut budget = w.room().min(w.step.quantum);
        responses::run(w, &mut budget);
    }
    w.ready |= requester::waiting(w);
}

/// Sends up to `budget` packets.
#[inline(always)]
fn send(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    match w.state() {
        QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr => {
            if w.q.service != ServiceType::Rc.raw() {
                return service::run(w, budget);
            }
            if responses::waiting(w) {
                responses::run(w, budget);
            }
            if requester::waiting(w) {
                requester::run(w, budget);
            }
        }
        _ => {}
    }
}
