//! Receive queues in error: posted WQEs complete as flushed, in order (IBTA 10.3.1; PRM: `rqc.flush_in_error_en`).

use super::receive::{ERROR, failed, refresh};
use crate::{
    host::Party,
    mlx5::{
        Step, completion,
        flush::{BATCH, FIRST_LOOK_US, LAST_LOOK_US, PS_PER_US},
    },
    region::{Func, TimerKind},
    state::{Counters, RqRow},
};
use hwspec::cqe::{CqeSyndrome, vendor_err};

/// Starts the flush of queue `index` in the error state, from `now` on, if it is configured to flush.
#[cold]
pub(crate) fn begin(func: &mut Func<'_>, now: u64, index: u32) {
    let Some(rq) = func.row_mut::<RqRow>(index) else { return };
    if rq.state == ERROR && rq.flags & RqRow::FLUSH != 0 {
        rq.flush_wait = 0;
        func.forget_timer(index, TimerKind::Rq);
        func.arm_timer(index, TimerKind::Rq, now);
    }
}

/// Completes a batch of the WQEs posted to queue `index`. Receives are posted without a doorbell, so an empty queue is
/// checked again, with the interval doubled each time.
#[cold]
pub(crate) fn flush(func: &mut Func<'_>, step: &mut Step<'_>, index: u32) {
    let Some(mut rq) = func.row::<RqRow>(index).copied() else { return };
    if rq.state != ERROR {
        return;
    }
    let party = Party(rq.head.party);
    if !step.host.reaches(party) {
        step.blocked = Some(party);
        return;
    }
    refresh(func, step, &mut rq);
    let mut left = BATCH;
    while rq.pi != rq.ci && left != 0 {
        left -= 1;
        func.count(Counters::RespCqeError, 1);
        func.count(Counters::RespCqeFlushError, 1);
        let cqe = failed(func, index, &rq, (CqeSyndrome::WrFlushErr, vendor_err::FLUSH));
        rq.ci = (rq.ci + 1) & 0xffff;
        if !completion::append(func, step, rq.cqn, cqe, true) {
            rq.ci = rq.pi;
        }
    }
    let wait = match left {
        0 => Some(0),
        BATCH if rq.flush_wait >= LAST_LOOK_US => None,
        BATCH if rq.flush_wait != 0 => Some(rq.flush_wait * 2),
        _ => Some(FIRST_LOOK_US),
    };
    if let Some(row) = func.row_mut::<RqRow>(index) {
        (row.pi, row.ci, row.flush_wait) = (rq.pi, rq.ci, wait.unwrap_or(rq.flush_wait));
    }
    if let Some(wait) = wait {
        func.arm_timer(index, TimerKind::Rq, step.now + u64::from(wait) * PS_PER_US);
    }
}
