//! What happens when a timer of a QP runs out.

use super::{Job, Step, acks, flush, work::Work};
use crate::{
    region::{Func, TimerKind},
    state::{Counters, QpFlags},
};
use hwspec::context::QpState;

/// A timer entry came up. The deadline in the QP's row is what counts: it may have moved on or be gone.
pub(crate) fn expire(func: &mut Func<'_>, step: &mut Step<'_>, qp: u32, kind: TimerKind) {
    let Some(mut w) = Work::open(func, step, qp) else { return };
    let party = crate::host::Party(w.q.head.party);
    if !w.step.host.reaches(party) {
        w.step.blocked = Some(party);
        return;
    }
    match kind {
        TimerKind::Ack if w.q.ack_deadline != 0 && w.step.now >= w.q.ack_deadline => {
            w.q.ack_deadline = 0;
            if matches!(w.state(), QpState::Rts | QpState::SqDrained) && w.q.una_psn != w.q.max_psn {
                // IBTA 9.7.6.1.3
                w.count(Counters::LocalAckTimeoutErr);
                w.q.set(QpFlags::GAP, false);
                acks::go_back(&mut w);
                w.step.push(Job::Execute { qp });
            }
        }
        TimerKind::Rnr if w.q.rnr_deadline != 0 && w.step.now >= w.q.rnr_deadline => {
            w.q.rnr_deadline = 0;
            w.q.set(QpFlags::RNR_WAIT, false);
            if w.state() == QpState::Err {
                flush::run(&mut w);
            } else {
                w.step.push(Job::Execute { qp });
            }
        }
        _ => {}
    }
    w.close();
}
