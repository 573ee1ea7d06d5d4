//! Events: entries of event queues and their interrupts (PRM: event queues).

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

/// Number of distinct event queue numbers: eight bits.
const NUMBERS: u32 = 256;

/// The number of the event queue in row `index`.
pub(crate) fn number(index: u32) -> u32 {
    index % NUMBERS
}

/// The event queues with number `number` of all contexts, with their rows' indices.
pub(crate) fn called<'a>(func: &'a Func<'_>, number: u32) -> impl Iterator<Item = (u32, &'a EqRow)> {
    let rows = if number < NUMBERS { func.rows(Table::Eq) } else { 0 };
    let all = (number..rows).step_by(NUMBERS as usize);
    all.filter_map(|index| Some((index, func.row::<EqRow>(index)?)))
}

/// The event queue with number `number` on doorbell page `uar`.
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
    // Also dropped if the job has no room for it: a gap in the queue would stall its consumer forever.
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

/// EQ register of a doorbell page: sets the consumer index, and arms. Arming an EQ with unconsumed entries raises its
/// interrupt at once.
pub(crate) fn update(func: &mut Func<'_>, (uar, number): (u32, u32), ci: u32, arm: bool) {
    let Some(eqn) = behind(func, uar, number) else { return };
    let Some(row) = func.row_mut::<EqRow>(eqn) else { return };
    // The register has 24 bits; the remaining ones are taken from the producer index.
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

/// Raises the completion event of CQ `cqn`.
pub(crate) fn completion(func: &mut Func<'_>, eqn: u32, cqn: u32) {
    push(func, eqn, Eqe::new(EventType::Comp, CompEvent::with(|s| s.cq_number(Cqn(cqn)))));
}

/// The event queue that receives events of `kind`.
pub(crate) fn listener(func: &Func<'_>, kind: EventType) -> Option<u32> {
    let bit = 1u64 << kind.raw();
    func.live::<EqRow>().into_iter().find(|i| func.row::<EqRow>(*i).is_some_and(|eq| eq.mask[0] & bit != 0))
}

/// Raises an event of a QP, SRQ or CQ of user context `uid`. It goes to an EQ of that context that subscribes to it,
/// otherwise to one of the function's own driver. If the driver has none, events of its objects go to all contexts that
/// subscribe to them.
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

/// Raises an event of QP or SRQ `number`.
pub(crate) fn queue(func: &mut Func<'_>, uid: u16, kind: EventType, number: u32) {
    of_kind(func, uid, kind, QueueKind::Qp, number);
}

/// Reports that receive queue `number`, which has no queue pair, failed and could not report it in a completion.
pub(crate) fn receive_queue(func: &mut Func<'_>, uid: u16, number: u32) {
    of_kind(func, uid, EventType::WqCatasError, QueueKind::Rq, number);
}

fn of_kind(func: &mut Func<'_>, uid: u16, kind: EventType, queue: QueueKind, number: u32) {
    affiliated(func, uid, kind, QpEvent::with(|s| s.kind(queue).qpn_rqn_sqn(Qpn(number))));
}

/// Reports the overflow of a CQ.
pub(crate) fn cq_error(func: &mut Func<'_>, uid: u16, cqn: u32) {
    let data = CqErrorEvent::with(|s| s.cqn(Cqn(cqn)).syndrome(CqErrorSyndrome::Overrun));
    affiliated(func, uid, EventType::CqError, data);
}
