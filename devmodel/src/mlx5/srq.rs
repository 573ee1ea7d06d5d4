//! Shared receive queues: their WQEs, and the SRQs that a request over XRC may name (IBTA 10.8.3.2, annex A14).

use super::{event, work::Work};
use crate::{
    host::Iova,
    state::{SrqKind, SrqRow},
    translate,
};
use hwspec::{
    eqe::EventType,
    wqe::{NextSeg, WQE_DS},
};

/// The SRQ `srqn`, if requests of the QP may name it: it must be in the QP's XRC domain.
pub(crate) fn named(w: &Work<'_, '_, '_>, srqn: u32) -> Option<SrqRow> {
    let srq = w.func.get::<SrqRow>(srqn)?;
    (srq.kind == SrqKind::Xrc as u32 && srq.xrcd == w.q.xrcd).then_some(*srq)
}

/// The protection domain of requests that name `srqn`.
#[cold]
pub(crate) fn domain(w: &Work<'_, '_, '_>, srqn: u32) -> u32 {
    named(w, srqn).map_or(w.receiver.pd, |srq| srq.pd)
}

/// Takes the next receive WQE and returns its index. `None` if there is none.
#[inline(never)]
pub(super) fn take(w: &mut Work<'_, '_, '_>) -> Option<u16> {
    let srqn = w.receiver.srqn;
    let mut srq = *w.func.get::<SrqRow>(srqn)?;
    let posted = |counter: u32, consumed: u32| (counter as u16).wrapping_sub(consumed as u16);
    let rid = w.func.rid();
    if posted(srq.counter, srq.consumed) == 0 || srq.lwm != 0 {
        let mut word = [0; 4];
        w.step.host.read(rid, srq.dbr, &mut word).ok()?;
        srq.counter = u32::from_be_bytes(word);
    }
    if posted(srq.counter, srq.consumed) == 0 {
        return None;
    }
    let index = srq.next & ((1 << srq.log_size) - 1);
    let at = translate::queue(w.func, &srq.memory, index << srq.log_stride)?;
    let mut next = [0; NextSeg::SIZE];
    w.step.host.read(rid, at, &mut next).ok()?;
    srq.next = NextSeg::from_bytes(next).next_wqe_index().into();
    srq.consumed = u32::from((srq.consumed as u16).wrapping_add(1));
    // The limit event is raised once per arming (IBTA 10.2.9.1).
    let reached = srq.lwm != 0 && u32::from(posted(srq.counter, srq.consumed)) < srq.lwm;
    if reached {
        srq.lwm = 0;
    }
    let uid = srq.head.uid;
    *w.func.get_mut::<SrqRow>(srqn)? = srq;
    if reached {
        event::queue(w.func, uid, EventType::SrqRqLimit, srqn);
    }
    Some(index as u16)
}

/// Address and size of the scatter list of WQE `index` in a shared queue, and its protection domain.
#[inline(never)]
pub(super) fn place(w: &Work<'_, '_, '_>, index: u16) -> Option<(Iova, usize, u32)> {
    let srq = *w.func.get::<SrqRow>(w.receiver.srqn)?;
    let slot = u32::from(index) & ((1 << srq.log_size) - 1);
    let at = translate::queue(w.func, &srq.memory, (slot << srq.log_stride) + WQE_DS as u32)?;
    Some((at, (1usize << srq.log_stride).checked_sub(WQE_DS)?, srq.pd))
}
