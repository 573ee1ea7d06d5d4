//! Events: entries of event queues and the interrupts behind them (PRM: event queues).

use super::interrupt;
use crate::{
    host::Iova,
    region::{Effect, Func, Table},
    state::EqRow,
    translate,
};
use hwspec::{
    eqe::{CompEvent, CqErrorEvent, CqErrorSyndrome, Eqe, EventData, EventType, QpEvent, QueueKind},
    handle::{Cqn, Qpn},
};

/// Numbers of event queues: what eight bits hold.
const NUMBERS: u32 = 256;

/// The number of the event queue in row `index`.
pub(crate) fn number(index: u32) -> u32 {
    index % NUMBERS
}

/// The event queues called `number`, whoever they belong to, with their rows' indices.
pub(crate) fn called<'a>(func: &'a Func<'_>, number: u32) -> impl Iterator<Item = (u32, &'a EqRow)> {
    let rows = if number < NUMBERS { func.rows(Table::Eq) } else { 0 };
    let all = (number..rows).step_by(NUMBERS as usize);
    all.filter_map(|index| Some((index, func.row::<EqRow>(index)?)))
}

/// The event queue that doorbell page `uar` knows by `number`.
fn behind(func: &Func<'_>, uar: u32, number: u32) -> Option<u32> {
    called(func, number).find(|(_, row)| row.uar == uar).map(|(index, _)| index)
}

/// Appends an event to the EQ in row `eqn`.
pub(crate) fn push(func: &mut Func<'_>, eqn: u32, mut eqe: Eqe) {
    let Some(row) = func.row::<EqRow>(eqn) else { return };
    let size = 1u32 << row.log_size;
    let full = row.pi.wrapping_sub(row.ci) & 0xff_ffff >= size;
    let at: Option<Iova> = translate::queue(func, &row.memory, (row.pi & (size - 1)) * Eqe::SIZE as u32);
    let (pi, armed, vector) = (row.pi, row.armed, row.vector);
    eqe.set().owner(pi >> row.log_size & 1 != 0);
    // Dropped as well when the job has no room for it: a gap in the queue would stall its consumer forever.
    let fits = at.filter(|_| !full).is_some_and(|at| func.effect(Effect::Write { at, data: eqe.as_bytes() }));
    let Some(row) = func.row_mut::<EqRow>(eqn) else { return };
    if !fits {
        row.overflowed = 1;
        return;
    }
    row.pi = pi.wrapping_add(1);
    row.armed = 0;
    if armed != 0 {
        interrupt::raise(func, vector);
    }
}

/// EQ register of a doorbell page: consumer index, and arming. An EQ armed behind its producer raises its interrupt at once.
pub(crate) fn update(func: &mut Func<'_>, (uar, number): (u32, u32), ci: u32, arm: bool) {
    let Some(eqn) = behind(func, uar, number) else { return };
    let Some(row) = func.row_mut::<EqRow>(eqn) else { return };
    // The register has 24 bits; the producer supplies the others.
    let behind = row.pi.wrapping_sub(ci) & 0xff_ffff;
    row.ci = row.pi.wrapping_sub(behind);
    if !arm {
        return;
    }
    let vector = row.vector;
    row.armed = u32::from(behind == 0);
    if behind != 0 {
        interrupt::raise(func, vector);
    }
}

/// Completion event of CQ `cqn`.
pub(crate) fn completion(func: &mut Func<'_>, eqn: u32, cqn: u32) {
    push(func, eqn, Eqe::new(EventType::Comp, CompEvent::with(|s| s.cq_number(Cqn(cqn)))));
}

/// The event queue that events of `kind` go to.
pub(crate) fn listener(func: &Func<'_>, kind: EventType) -> Option<u32> {
    let bit = 1u64 << kind.raw();
    func.live::<EqRow>().into_iter().find(|i| func.row::<EqRow>(*i).is_some_and(|eq| eq.mask[0] & bit != 0))
}

/// Event of a QP, SRQ or CQ that belongs to user context `uid`: goes to an EQ of that context that wants it, else to one
/// of the function's own driver. Where that has none, events of its objects go to every context that wants them.
pub(crate) fn affiliated(func: &mut Func<'_>, uid: u16, kind: EventType, data: impl EventData) {
    let bit = kind.raw();
    let mut wanting: Vec<(u32, u16)> = func
        .live::<EqRow>()
        .into_iter()
        .filter_map(|eqn| func.row::<EqRow>(eqn).map(|eq| (eqn, eq)))
        .filter(|(_, eq)| eq.mask[usize::from(bit) / 64] >> (bit % 64) & 1 != 0)
        .map(|(eqn, eq)| (eqn, eq.head.uid))
        .collect();
    let of = |uid: u16| wanting.iter().position(|(_, owner)| *owner == uid);
    match of(uid).or_else(|| of(0)) {
        Some(at) => wanting = vec![wanting[at]],
        None if uid != 0 => return,
        None => {}
    }
    for (eqn, _) in wanting {
        push(func, eqn, Eqe::new(kind, data));
    }
}

/// Event of QP or SRQ `number`.
pub(crate) fn queue(func: &mut Func<'_>, uid: u16, kind: EventType, number: u32) {
    of_kind(func, uid, kind, QueueKind::Qp, number);
}

/// Receive queue `number`, which is not a queue pair's, failed and could not say so in a completion.
pub(crate) fn receive_queue(func: &mut Func<'_>, uid: u16, number: u32) {
    of_kind(func, uid, EventType::WqCatasError, QueueKind::Rq, number);
}

fn of_kind(func: &mut Func<'_>, uid: u16, kind: EventType, queue: QueueKind, number: u32) {
    affiliated(func, uid, kind, QpEvent::with(|s| s.kind(queue).qpn_rqn_sqn(Qpn(number))));
}

/// A CQ overflowed.
pub(crate) fn cq_error(func: &mut Func<'_>, uid: u16, cqn: u32) {
    let data = CqErrorEvent::with(|s| s.cqn(Cqn(cqn)).syndrome(CqErrorSyndrome::Overrun));
    affiliated(func, uid, EventType::CqError, data);
}
