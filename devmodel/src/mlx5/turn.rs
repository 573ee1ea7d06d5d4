//! Work on a queue pair: what triggers it, that is, a doorbell, a timer or its turn, and the packets that it sends in its turn (PRM:
//! doorbells).

use super::{
    acks, completion, datagram, ethernet,
    fetch::{self, Wqe},
    flush, rates, receive, requester, responder,
    step::Step,
    umr,
    work::{Failure, QpStage},
};
use crate::{
    host::Party,
    region::Func,
    state::{Counters, QpFlags, QpRow, SendRecord},
    transport::{self, Request, Timer},
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::CqeOpcode,
};

/// Handles a send doorbell, of a QP or of a send queue without one.
#[inline(never)]
pub(crate) fn ring(func: &mut Func<'_>, step: &mut Step<'_>, qpn: u32, uar: u32) {
    let qp = func.index::<QpRow>(qpn);
    if qp.and_then(|qp| with(func, step, qp, |w| ring_qp(w, uar))).is_none() {
        ethernet::ring(func, step, qpn, uar);
    }
}

/// Reads the producer index and starts the requester, or flushes the WQEs posted to a QP in error. The doorbell record holds the number
/// of posted WQEs, the register only tells that it changed.
fn ring_qp(w: &mut QpStage<'_, '_, '_>, uar: u32) {
    // A doorbell is valid only through the UAR page of the QP.
    let good = w.q.uar == uar && w.func.function().rings() && !w.q.has(QpFlags::NO_SQ);
    if !good || fetch::refresh(w).is_none() {
        return w.count(Counters::BadDoorbells);
    }
    match w.state() {
        // In SQE, posted WQEs are flushed.
        QpState::Rts | QpState::SqErr => w.execute = true,
        QpState::Err => flush::enter_error(w),
        // Posted before the QP was ready to send; the transition to RTS starts it.
        _ => {}
    }
}

/// Runs the QP's turn to send.
#[inline(always)]
pub(crate) fn take_turn(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32) {
    with(func, step, qp, |w| w.execute = true);
}

/// Handles an expired timer of the QP. The deadline in the QP's row is authoritative: the timer may have been restarted or stopped.
#[inline(always)]
pub(crate) fn expire(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32, timer: Timer) {
    with(func, step, qp, |w| match timer {
        _ if !w.q.requester.timers.is_due(timer, w.step.now) => {}
        Timer::Ack => w.execute |= transport::acknowledgement_timeout(w, |w| w.is_peer_held_up()),
        Timer::Rnr => {
            w.q.requester.rnr_timeout();
            w.execute = true;
        }
    });
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
    stage: impl FnOnce(&mut QpStage<'_, '_, '_>),
) -> Option<()> {
    QpStage::on(func, step, qp, |w| {
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

/// Runs the QP's turn to send: responses before requests.
#[inline]
fn execute(w: &mut QpStage<'_, '_, '_>) {
    if w.state() == QpState::Err {
        // Over XRC, the receive in use belongs to the SRQ that was named, and its completion goes to that SRQ's CQ.
        if !w.is(ServiceType::Xrc) || receive::select(w, w.q.xrc_srqn) {
            flush::run(w);
        }
        return;
    }
    let mut budget = w.room().min(w.step.quantum);
    if w.step.region.is_switched() {
        budget = rates::budget(w, budget);
    }
    if budget == 0 {
        // The peer must consume the waiting frames before more are sent.
        w.ready = true;
        w.step.yielded = true;
        // Other queues may have a peer that has room.
        w.step.paused = w.peer().is_none() && w.func.is_only_ready();
        return;
    }
    match w.q.requester.is_limited() {
        _ if w.step.takes_turns => answer(w, budget),
        true => rates::take_limited_turn(w, budget, send),
        false => send(w, &mut budget),
    }
}

/// Sends the responses that the peer waits for; requests are sent in the next turn.
#[cold]
fn answer(w: &mut QpStage<'_, '_, '_>, mut budget: u32) {
    if !w.receives() || !w.is(ServiceType::Rc) {
        w.ready = true;
        return;
    }
    if responder::waiting(w) {
        responder::run(w, &mut budget);
    }
    w.ready |= requester::waiting(w);
}

/// Sends up to `budget` packets.
#[inline(always)]
fn send(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) {
    if !w.receives() {
        return;
    }
    if !w.is(ServiceType::Rc) {
        return send_unlike_rc(w, budget);
    }
    if responder::waiting(w) {
        responder::run(w, budget);
    }
    if requester::waiting(w) {
        requester::run(w, budget);
    }
}

/// [`send`] for services other than RC. RC, the most frequent, bypasses this dispatch.
#[cold]
fn send_unlike_rc(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) {
    match ServiceType::from_raw(w.q.service) {
        ServiceType::Uc => send_unreliable(w, budget),
        ServiceType::RegUmr => send_at_once(w, budget, umr::next),
        ServiceType::Xrc => {
            if !receive::select(w, w.q.xrc_srqn) {
                return;
            }
            if responder::waiting(w) {
                responder::run(w, budget);
            }
            requester::run(w, budget);
        }
        _ => send_at_once(w, budget, datagram::next),
    }
}

/// [`send`] for UC: a sent packet is done.
fn send_unreliable(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) {
    loop {
        if w.state() == QpState::SqErr {
            return flush::stop(w);
        }
        requester::run(w, budget);
        if w.q.requester.is_acknowledged() || matches!(w.state(), QpState::Err | QpState::SqErr) {
            w.q.requester.timers.stop(Timer::Ack);
            return;
        }
        transport::complete_sent(w);
    }
}

/// Executes the WQE at an index; returns its number of segments and its result.
type Next = fn(&mut QpStage<'_, '_, '_>, u16) -> (u8, Result<Wqe, Failure>);

/// Executes up to `budget` work requests, each of which is complete when `next` returns.
fn send_at_once(w: &mut QpStage<'_, '_, '_>, budget: &mut u32, next: Next) {
    while w.q.sq_next != w.q.sq_pi {
        match w.state() {
            QpState::Rts => {}
            QpState::SqErr => return flush::sends_of_stopped(w),
            _ => return,
        }
        if *budget == 0 {
            w.ready = true;
            return;
        }
        *budget -= 1;
        let index = w.q.sq_next;
        let (ds, done) = next(w, index);
        w.q.sq_next = index.wrapping_add(fetch::blocks(ds));
        w.q.sq_ci = w.q.sq_next;
        let (opcode, length) = match &done {
            Ok(wqe) => (wqe.opcode.raw(), wqe.length),
            Err(_) => (w.step.buffers.wqe[3], 0),
        };
        match done {
            Ok(wqe) => {
                let record = SendRecord {
                    wqe_index: index,
                    opcode,
                    request: Request { length, ..Request::default() },
                    ..SendRecord::default()
                };
                if wqe.signaled && !acks::complete(w, &record, None) {
                    return;
                }
            }
            Err(failure) => {
                completion::fail(w, CqeOpcode::ReqErr, failure, index, opcode);
                return flush::stop(w);
            }
        }
    }
}
