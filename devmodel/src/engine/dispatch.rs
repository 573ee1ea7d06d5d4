//! Dispatches a job to its stage: commands and the data path meet here and nowhere below.

use crate::{
    cmd,
    mlx5::{self, Job, Step, completion, ethernet, event},
    region::{Func, TimerKind},
    subnet,
};

/// Runs one job on its function.
#[inline(always)]
pub(super) fn dispatch(job: &Job, func: &mut Func<'_>, step: &mut Step<'_>) {
    match *job {
        Job::Arrive => mlx5::arrive(func, step),
        Job::Doorbell { qpn, uar } => mlx5::ring(func, step, qpn, uar),
        _ => dispatch_control(*job, func, step),
    }
}

/// Jobs other than frames and send doorbells.
#[inline(never)]
fn dispatch_control(job: Job, func: &mut Func<'_>, step: &mut Step<'_>) {
    match job {
        Job::Arrive => mlx5::arrive(func, step),
        Job::Doorbell { qpn, uar } => mlx5::ring(func, step, qpn, uar),
        Job::Command { slots } => cmd::doorbell(func, step, slots),
        Job::ArmCq { cqn, value } => completion::arm(func, step.now, cqn, value),
        Job::EqUpdate { eqn, uar, ci, arm } => event::update(func, (uar, eqn), ci, arm),
        Job::Transmit { sq } => ethernet::run(func, step, sq),
        Job::Execute { qp } => mlx5::take_turn(func, step, qp),
        Job::Timeout { qp: cq, kind: TimerKind::Cq } => completion::expire(func, step.now, cq),
        Job::Timeout { qp: rq, kind: TimerKind::Rq } => ethernet::flush(func, step, rq),
        Job::Timeout { kind: TimerKind::Command, .. } => cmd::delayed(func, step),
        // Queues that waited for the port's rate are in the ready ring.
        Job::Timeout { kind: TimerKind::Pace, .. } => func.publish_ready(),
        Job::Timeout { qp, kind: TimerKind::Rate } => mlx5::take_turn(func, step, qp),
        Job::Timeout { qp: table, kind: TimerKind::Segments } => subnet::expire(func, step, table),
        Job::Timeout { qp, kind: TimerKind::Connection(timer) } => mlx5::expire(func, step, qp, timer),
        Job::Flush { qp } => mlx5::flush_qp(func, step, qp),
    }
}
