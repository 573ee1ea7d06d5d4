//! Receive WQEs, from the QP's own queue or from a shared one, which a request over XRC may name (IBTA 10.8.3.2, annex A14).

use super::{
    event,
    work::{QpStage, Receiver},
};
use crate::{
    state::{QpFlags, SrqKind, SrqRow},
    translate::{Domain, User},
};
use hwspec::{
    doorbell::RCV_DBR,
    eqe::{EventType, QueueKind},
    wqe::{NextSeg, WQE_DS},
};

/// Reads the receive counter of the doorbell record.
#[inline(never)]
pub(crate) fn refresh(w: &mut QpStage<'_, '_, '_>) -> Option<()> {
    w.q.rq_pi = w.q.rq().posted(w.func, w.step.host, RCV_DBR)?;
    Some(())
}

/// Takes the next receive WQE and returns its index. `None` if there is none (IBTA 9.7.5.2.8: receiver not ready). A WQE of
/// the QP's own queue is consumed only by [`done`].
#[inline(always)]
pub(crate) fn take(w: &mut QpStage<'_, '_, '_>) -> Option<u16> {
    if w.q.has(QpFlags::HAS_SRQ) {
        return take_shared(w);
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
pub(crate) fn done(w: &mut QpStage<'_, '_, '_>) {
    if !w.q.has(QpFlags::HAS_SRQ) {
        w.q.rq_ci = w.q.rq_ci.wrapping_add(1);
    }
}

/// The state of the QP's shared queue, if it has one.
pub(crate) fn shared(w: &QpStage<'_, '_, '_>) -> Option<SrqRow> {
    w.func.get::<SrqRow>(w.receiver.srqn).filter(|_| w.q.has(QpFlags::HAS_SRQ)).copied()
}

/// Returns the WQE taken from the shared queue, whose state before that was `before`.
pub(crate) fn give_back(w: &mut QpStage<'_, '_, '_>, before: Option<SrqRow>) {
    if let (Some(before), Some(row)) = (before, w.func.get_mut::<SrqRow>(w.receiver.srqn)) {
        *row = before;
    }
}

/// Resizes the buffer for WQEs of `len` bytes.
#[inline(never)]
fn fit(room: &mut Vec<u8>, len: usize) {
    room.resize(len, 0);
}

/// Reads the scatter list of WQE `index` into the step's buffer and returns the domain of its keys.
#[inline(always)]
pub(crate) fn load(w: &mut QpStage<'_, '_, '_>, index: u16) -> Option<Domain> {
    let (at, len, pd) = match w.q.has(QpFlags::HAS_SRQ) {
        true => place_shared(w, index)?,
        false => (w.q.rq().entry(w.func, index, 0)?, 1usize << w.q.log_rq_stride, w.receiver.pd),
    };
    let rid = w.func.rid();
    let buffers = &mut *w.step.buffers;
    if buffers.receive.len() != len {
        fit(&mut buffers.receive, len);
    }
    w.step.host.read(rid, at, &mut buffers.receive).ok()?;
    Some(Domain { user: User { pd, qpn: w.qpn() }, rlky: w.q.has(QpFlags::RESERVED_LKEY) })
}

/// Makes the SRQ `srqn` the receiver of the QP's requests, with its CQ and protection domain. False if this runner cannot reach its
/// memory.
#[cold]
pub(crate) fn select(w: &mut QpStage<'_, '_, '_>, srqn: u32) -> bool {
    w.receiver = Receiver::of(&w.q);
    let Some(srq) = named(w, srqn).filter(|_| w.q.has(QpFlags::NO_SQ)) else { return true };
    if !w.step.reaches(srq.head.party) {
        return false;
    }
    w.receiver = Receiver { pd: srq.pd, srqn, cqn: srq.cqn, user_index: srq.user_index };
    true
}

/// The SRQ `srqn`, if requests of the QP may name it: it must be in the QP's XRC domain.
pub(crate) fn named(w: &QpStage<'_, '_, '_>, srqn: u32) -> Option<SrqRow> {
    let srq = w.func.get::<SrqRow>(srqn)?;
    (srq.kind == SrqKind::Xrc as u32 && srq.xrcd == w.q.xrcd).then_some(*srq)
}

/// Takes the next receive WQE and returns its index. `None` if there is none.
#[inline(never)]
fn take_shared(w: &mut QpStage<'_, '_, '_>) -> Option<u16> {
    let srqn = w.receiver.srqn;
    let mut srq = *w.func.get::<SrqRow>(srqn)?;
    if srq.wq().waiting() == 0 || srq.lwm != 0 {
        srq.counter = srq.wq().posted(w.func, w.step.host, RCV_DBR)?.into();
    }
    if srq.wq().waiting() == 0 {
        return None;
    }
    let index = srq.next as u16 & ((1 << srq.log_size) - 1);
    srq.next = match srq.cyclic != 0 {
        true => srq.next.wrapping_add(1),
        false => {
            let mut next = [0; NextSeg::SIZE];
            srq.wq().read(w.func, w.step.host, index, &mut next)?;
            NextSeg::from_bytes(next).next_wqe_index().into()
        }
    };
    srq.consumed = srq.wq().ci.wrapping_add(1).into();
    // The limit event is raised once per arming (IBTA 10.2.9.1).
    let reached = u32::from(srq.wq().waiting()) < srq.lwm;
    if reached {
        srq.lwm = 0;
    }
    let uid = srq.head.uid;
    *w.func.get_mut::<SrqRow>(srqn)? = srq;
    if reached {
        event::queue(w.func, uid, EventType::SrqRqLimit, (QueueKind::Qp, srqn));
    }
    Some(index)
}

/// Address and size of the scatter list of WQE `index` in a shared queue, and its protection domain.
#[inline(never)]
fn place_shared(w: &QpStage<'_, '_, '_>, index: u16) -> Option<(u64, usize, u32)> {
    let srq = *w.func.get::<SrqRow>(w.receiver.srqn)?;
    let at = srq.wq().entry(w.func, index, WQE_DS)?;
    Some((at, (1usize << srq.log_stride).checked_sub(WQE_DS)?, srq.pd))
}
