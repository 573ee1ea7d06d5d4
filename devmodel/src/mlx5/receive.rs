//! Receive WQEs, from the QP's own queue or from a shared one.

use super::{lists::Domain, srq, work::Work};
use crate::{
    state::QpFlags,
    translate::{self, User},
};
use hwspec::doorbell::RCV_DBR;

/// Reads the receive counter of the doorbell record.
#[inline(never)]
pub(crate) fn refresh(w: &mut Work<'_, '_, '_>) -> Option<()> {
    let mut word = [0; 4];
    w.step.host.read(w.func.rid(), w.q.dbr + 4 * RCV_DBR as u64, &mut word).ok()?;
    w.q.rq_pi = u32::from_be_bytes(word) as u16;
    Some(())
}

/// Takes the next receive WQE and returns its index. `None` if there is none (IBTA 9.7.5.2.8: receiver not ready). A WQE of
/// the QP's own queue is consumed only by [`done`].
#[inline(always)]
pub(crate) fn take(w: &mut Work<'_, '_, '_>) -> Option<u16> {
    if w.q.has(QpFlags::HAS_SRQ) {
        return srq::take(w);
    }
    if w.q.has(QpFlags::NO_RQ) {
        return None;
    }
    if w.q.rq_ci == w.q.rq_pi {
        refresh(w)?;
    }
    (w.q.rq_ci != w.q.rq_pi).then_some(w.q.rq_ci)
}

/// Consumes the WQE taken, because its message is complete.
pub(crate) fn done(w: &mut Work<'_, '_, '_>) {
    if !w.q.has(QpFlags::HAS_SRQ) {
        w.q.rq_ci = w.q.rq_ci.wrapping_add(1);
    }
}

/// Resizes the buffer for WQEs of `len` bytes.
#[inline(never)]
fn fit(room: &mut Vec<u8>, len: usize) {
    room.resize(len, 0);
}

/// Reads the scatter list of WQE `index` into the step's buffer and returns the domain of its keys.
#[inline(always)]
pub(crate) fn load(w: &mut Work<'_, '_, '_>, index: u16) -> Option<Domain> {
    let (at, len, pd) = if w.q.has(QpFlags::HAS_SRQ) {
        srq::place(w, index)?
    } else {
        let slot = u32::from(index) & ((1 << w.q.log_rq) - 1);
        let at = translate::queue(w.func, &w.q.memory, slot << w.q.log_rq_stride)?;
        (at, 1usize << w.q.log_rq_stride, w.receiver.pd)
    };
    let rid = w.func.rid();
    let buffers = &mut *w.step.buffers;
    if buffers.receive.len() != len {
        fit(&mut buffers.receive, len);
    }
    w.step.host.read(rid, at, &mut buffers.receive).ok()?;
    Some(Domain { user: User { pd, qpn: w.qpn() }, rlky: w.q.has(QpFlags::RESERVED_LKEY) })
}
