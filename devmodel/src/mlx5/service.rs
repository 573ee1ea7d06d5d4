//! Services other than RC: where their work goes. RC, the busiest, does not come here.

use super::{
    arrive::Packet,
    completion, datagram,
    fetch::{self, Wqe},
    flush, requester, responses, settle, uc, umr,
    work::{Failure, Work},
    xrc,
};
use crate::{
    state::{QpFlags, SendRecord},
    transport::Request,
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::CqeOpcode,
    wire::bth::Transport,
};

/// The transport of a service's packets, as the upper three bits of their opcodes say (IBTA 9.2.1).
#[inline]
pub(crate) fn transport(service: u8) -> Transport {
    if service == ServiceType::Rc.raw() {
        return Transport::Rc;
    }
    match ServiceType::from_raw(service) {
        ServiceType::Uc => Transport::Uc,
        ServiceType::Xrc => Transport::Xrc,
        _ => Transport::Ud,
    }
}

/// The QP's turn to send.
#[cold]
pub(crate) fn run(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    match ServiceType::from_raw(w.q.service) {
        ServiceType::Uc => uc::run(w, budget),
        ServiceType::RegUmr => at_once(w, budget, umr::next),
        ServiceType::Xrc => xrc::run(w, |w| {
            if responses::waiting(w) {
                responses::run(w, budget);
            }
            requester::run(w, budget);
        }),
        _ => at_once(w, budget, datagram::next),
    }
}

/// A packet for the QP.
#[cold]
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    match ServiceType::from_raw(w.q.service) {
        ServiceType::Uc => uc::arrive(w, packet),
        ServiceType::Xrc => xrc::arrive(w, packet),
        ServiceType::RegUmr => {}
        _ => datagram::arrive(w, packet),
    }
}

/// Takes the WQE at an index, and says how many segments that has and what became of it.
type Next = fn(&mut Work<'_, '_, '_>, u16) -> (u8, Result<Wqe, Failure>);

/// Carries out up to `budget` work requests of which each is done when `next` returns.
fn at_once(w: &mut Work<'_, '_, '_>, budget: &mut u32, next: Next) {
    while w.q.sq_next != w.q.sq_pi {
        match w.state() {
            QpState::Rts => {}
            QpState::SqErr => return flush_sends(w),
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
                if wqe.signaled && !settle::complete(w, &record, None) {
                    return;
                }
            }
            Err(failure) => {
                let cqe = completion::error(w, CqeOpcode::ReqErr, failure, index, opcode);
                completion::push(w, w.q.cqn_snd, cqe, true);
                return stop(w);
            }
        }
    }
}

/// A send request failed. The unreliable services stop sending only (IBTA 10.3.1.6), the others go to ERR.
pub(crate) fn stop(w: &mut Work<'_, '_, '_>) {
    let unreliable = w.q.service == ServiceType::Uc.raw() || w.q.is_datagram();
    if !unreliable {
        return flush::enter_error(w);
    }
    w.q.state = QpState::SqErr.raw();
    // What was sent counts as done; the command that starts sending again finds nothing in its way.
    w.q.requester.forget();
    w.q.requester.una_psn = w.q.requester.max_psn;
    w.q.set(QpFlags::SQ_FAILED, false);
    // What was to be waited for has ended.
    w.q.set(QpFlags::DRAINING, false);
    flush_sends(w);
}

fn flush_sends(w: &mut Work<'_, '_, '_>) {
    let mut left = flush::BATCH;
    flush::sends(w, &mut left);
    w.ready |= left == 0;
}
