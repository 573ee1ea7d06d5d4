//! The pipeline: what happens between a doorbell and a completion.
//!
//! [`job::Job`] is the drawing; the files below follow it.

pub mod job;
pub(crate) mod step;

mod acks;
mod arrive;
mod cnp;
mod completion;
mod doorbell;
mod duplicate;
pub(crate) mod event;
mod fetch;
pub(crate) mod flush;
pub(crate) mod lists;
mod packet;
mod receive;
mod requester;
mod responder;
mod responses;
mod settle;
mod timers;
pub(crate) mod work;

#[cfg(test)]
mod tests;

pub use job::Job;
pub use step::{Frame, Payload, Step};

use crate::{host::Party, region::Func};
use hwspec::context::QpState;
use work::Work;

/// Runs one job on its function.
pub fn dispatch(job: Job, func: &mut Func<'_>, step: &mut Step<'_>) {
    match job {
        Job::Command { slots } => crate::cmd::doorbell(func, step, slots),
        Job::Doorbell { qpn, uar } => doorbell::ring(func, step, qpn, uar),
        Job::ArmCq { cqn, value } => completion::arm(func, cqn, value),
        Job::EqUpdate { eqn, ci, arm } => event::update(func, eqn, ci, arm),
        Job::Arrive => arrive::take(func, step),
        Job::Execute { qp } => execute(func, step, qp),
        Job::Timeout { qp, kind } => timers::expire(func, step, qp, kind),
        Job::Flush { qp } => error(func, step, qp),
    }
}

/// The QP's turn to send: answers before requests.
fn execute(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32) {
    let Some(mut w) = Work::open(func, step, qp) else { return };
    let party = Party(w.q.head.party);
    if !w.step.host.reaches(party) {
        w.step.blocked = Some(party);
        return;
    }
    let mut budget = w.room();
    if budget == 0 {
        // The peer must take what waits before more is sent.
        w.ready = true;
        w.step.yielded = true;
        return w.close();
    }
    match w.state() {
        QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr => {
            if responses::waiting(&w) {
                responses::run(&mut w, &mut budget);
            }
            requester::run(&mut w, &mut budget);
        }
        QpState::Err => flush::run(&mut w),
        _ => {}
    }
    w.close();
}

/// The QP is in error, or something was posted to one that is.
fn error(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32) {
    let Some(mut w) = Work::open(func, step, qp) else { return };
    if w.state() == QpState::Err {
        flush::enter_error(&mut w);
    }
    w.close();
}
