//! Dispatch for services other than RC. RC, the most frequent, bypasses this module.

use super::{
    completion, datagram,
    fetch::{self, Wqe},
    flush,
    received::Packet,
    requester, responses, settle, uc, umr,
    work::{Failure, Work},
    xrc,
};
use crate::{state::SendRecord, transport::Request};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::CqeOpcode,
};

/// Runs the QP's turn to send.
#[cold]
pub(crate) fn run(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    match ServiceType::from_raw(w.q.service) {
        ServiceType::Uc => uc::run(w, budget),
        ServiceType::RegUmr => at_once(w, budget, umr::next),
        ServiceType::Xrc if xrc::select(w, w.q.xrc_srqn) => {
            if responses::waiting(w) {
                responses::run(w, budget);
            }
            requester::run(w, budget);
        }
        ServiceType::Xrc => {}
        _ => at_once(w, budget, datagram::next),
    }
}

/// Handles a packet for the QP.
#[cold]
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    match ServiceType::from_raw(w.q.service) {
        ServiceType::Uc => uc::arrive(w, packet),
        ServiceType::Xrc => xrc::arrive(w, packet),
        ServiceType::RegUmr => {}
        _ => datagram::arrive(w, packet),
    }
}

/// Executes the WQE at an index; returns its number of segments and its result.
type Next = fn(&mut Work<'_, '_, '_>, u16) -> (u8, Result<Wqe, Failure>);

/// Executes up to `budget` work requests, each of which is complete when `next` returns.
fn at_once(w: &mut Work<'_, '_, '_>, budget: &mut u32, next: Next) {
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
                if wqe.signaled && !settle::complete(w, &record, None) {
                    return;
                }
            }
            Err(failure) => {
                let cqe = completion::error(w, CqeOpcode::ReqErr, failure, index, opcode);
                completion::push(w, w.q.cqn_snd, cqe, true);
                return flush::stop(w);
            }
        }
    }
}
