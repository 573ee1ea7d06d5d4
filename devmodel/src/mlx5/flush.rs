//! The error state: all posted WQEs complete in order with a flush error (IBTA 10.3.1.5).

use super::{
    completion, fetch, receive,
    work::{Failure, QpStage},
};
use crate::{
    state::QpFlags,
    transport::{Message, Status, Timer},
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::CqeOpcode,
    eqe::EventType,
    layout::Layout,
    wqe::CtrlSeg,
};

pub(crate) const FLUSHED: Failure = Failure::of(Status::Flushed);
/// Maximum number of completions at once.
pub(crate) const BATCH: usize = 64;
/// First and last interval between checks of the receive counter of a QP in error. Receives are posted without a doorbell;
/// the interval doubles with each check.
pub(crate) const FIRST_LOOK_US: u32 = 32;
pub(crate) const LAST_LOOK_US: u32 = 4 << 20;
pub(crate) const PS_PER_US: u64 = 1_000_000;

/// Moves the QP to ERR, or begins the flush if a command has already moved it there.
pub(crate) fn enter_error(w: &mut QpStage<'_, '_, '_>) {
    w.ready = true;
    if w.q.has(QpFlags::FLUSH_SQ | QpFlags::FLUSH_RQ) && w.state() == QpState::Err {
        return;
    }
    let q = &mut *w.q;
    q.state = QpState::Err.raw();
    q.set(QpFlags::FLUSH_SQ | QpFlags::FLUSH_RQ | QpFlags::SQ_FAILED, true);
    q.set(QpFlags::DRAINING, false);
    q.flush_wait = 0;
    q.requester.stop();
    q.responder.stop();
    q.set(QpFlags::LAST_WQE_OWED, q.has(QpFlags::HAS_SRQ));
}

/// Completes up to `left` of the posted send requests.
fn sends(w: &mut QpStage<'_, '_, '_>, left: &mut usize) {
    if w.q.has(QpFlags::NO_SQ) || fetch::refresh(w).is_none() {
        return;
    }
    while w.q.sq_ci != w.q.sq_pi && *left > 0 {
        let index = w.q.sq_ci;
        let ds = fetch::segments(w, index);
        let opcode = CtrlSeg::read(&w.step.buffers.wqe).opcode().raw();
        if !completion::fail(w, CqeOpcode::ReqErr, FLUSHED, index, opcode) {
            w.q.sq_ci = w.q.sq_pi;
            break;
        }
        // A length beyond the posted WQEs ends the walk.
        let step = fetch::blocks(ds).min(w.q.sq_pi.wrapping_sub(index));
        w.q.sq_ci = index.wrapping_add(step);
        *left -= 1;
    }
    w.q.sq_next = w.q.sq_ci;
}

/// Handles a failed send request. The unreliable services only stop sending (IBTA 10.3.1.6), the others go to ERR.
pub(crate) fn stop(w: &mut QpStage<'_, '_, '_>) {
    let unreliable = w.is(ServiceType::Uc) || w.q.is_datagram();
    if !unreliable {
        return enter_error(w);
    }
    w.q.state = QpState::SqErr.raw();
    // Sent requests count as done, so that they do not block the command that resumes sending.
    w.q.requester.forget();
    w.q.requester.una_psn = w.q.requester.max_psn;
    w.q.set(QpFlags::SQ_FAILED, false);
    // The outstanding requests have ended.
    w.q.set(QpFlags::DRAINING, false);
    sends_of_stopped(w);
}

pub(crate) fn sends_of_stopped(w: &mut QpStage<'_, '_, '_>) {
    let mut left = BATCH;
    sends(w, &mut left);
    w.ready |= left == 0;
}

/// Completes the posted WQEs, a batch at a time.
#[cold]
pub(crate) fn run(w: &mut QpStage<'_, '_, '_>) {
    let mut left = BATCH;
    sends(w, &mut left);
    if w.q.has(QpFlags::HAS_SRQ) {
        // The WQE in use was taken from the SRQ and must be returned to the program.
        if w.q.responder.rx.kind == Message::SEND {
            completion::fail(w, CqeOpcode::RespErr, FLUSHED, w.q.responder.rx.receive as u16, 0);
            w.q.responder.rx = Message::default();
        }
        // IBTA 10.2.9.2 (affiliated event "last WQE reached"): the QP takes no more WQEs from its SRQ, and those it took have completed.
        if w.q.has(QpFlags::LAST_WQE_OWED) {
            w.q.set(QpFlags::LAST_WQE_OWED, false);
            w.raise(EventType::SrqLastWqe);
        }
    } else if !w.q.has(QpFlags::NO_RQ) {
        w.q.responder.rx = Message::default();
        let before = w.q.rq_ci;
        if receive::refresh(w).is_some() {
            while w.q.rq_ci != w.q.rq_pi && left > 0 {
                if !completion::fail(w, CqeOpcode::RespErr, FLUSHED, w.q.rq_ci, 0) {
                    w.q.rq_ci = w.q.rq_pi;
                    break;
                }
                w.q.rq_ci = w.q.rq_ci.wrapping_add(1);
                left -= 1;
            }
        }
        if w.q.rq_ci != before {
            w.q.flush_wait = 0;
        }
    }
    if left == 0 {
        w.ready = true;
    } else if !w.q.has(QpFlags::NO_RQ) && !w.q.has(QpFlags::HAS_SRQ) {
        w.q.flush_wait = if w.q.flush_wait == 0 { FIRST_LOOK_US } else { w.q.flush_wait * 2 };
        if w.q.flush_wait <= LAST_LOOK_US {
            let at = w.step.now + u64::from(w.q.flush_wait) * PS_PER_US;
            w.q.requester.timers.set(Timer::Rnr, at);
        } else {
            w.q.flush_wait = LAST_LOOK_US;
            w.q.requester.timers.stop(Timer::Rnr);
        }
    }
}
