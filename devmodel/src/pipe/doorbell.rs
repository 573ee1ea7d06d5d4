//! Send doorbell: the record says how much was posted, the register only that it changed (PRM: doorbells).

use super::{
    Job, Step,
    work::{Work, count},
};
use crate::{
    pcie,
    region::Func,
    state::{Counters, QpFlags, QpRow},
};
use hwspec::{
    context::QpState,
    doorbell::{RECORD_SIZE, SND_DBR},
};

/// Takes the producer index and starts the requester, or flushes what was posted to a QP in error.
pub(crate) fn ring(func: &mut Func<'_>, step: &mut Step<'_>, qpn: u32, uar: u32) {
    let Some(qp) = func.index::<QpRow>(qpn).filter(|qp| func.exists::<QpRow>(*qp)) else {
        count(func, Counters::BadDoorbells);
        return;
    };
    let Some(mut w) = Work::open(func, step, qp) else { return };
    // A doorbell counts only through the page the QP was given.
    if w.q.uar != uar || !pcie::answers(w.func) {
        return w.count(Counters::BadDoorbells);
    }
    if w.q.has(QpFlags::NO_SQ) || refresh(&mut w).is_none() {
        w.count(Counters::BadDoorbells);
    }
    match w.state() {
        QpState::Rts => w.step.push(Job::Execute { qp }),
        QpState::Err | QpState::SqErr => w.step.push(Job::Flush { qp }),
        // Posted before the QP was ready to send: the transition to RTS starts it.
        _ => {}
    }
    w.close();
}

/// Reads the send counter of the doorbell record.
pub(crate) fn refresh(w: &mut Work<'_, '_, '_>) -> Option<()> {
    let mut word = [0; RECORD_SIZE / 2];
    w.step.host.read(w.func.rid(), w.q.dbr + 4 * SND_DBR as u64, &mut word).ok()?;
    w.q.sq_pi = u32::from_be_bytes(word) as u16;
    Some(())
}
