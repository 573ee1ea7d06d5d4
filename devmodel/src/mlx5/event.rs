//! Events: entries of event queues and their interrupts (PRM: event queues).

use crate::{
    host::Iova,
    pcie::msix,
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
        msix::raise(func, vector);
    }
}

/// EQ register of a doorbell page: sets the consumer index, and arms. Arming an EQ with unconsumed entries raises its
/// interrupt at once.
pub(crate) fn update(func: &mut Func<'_>, (uar, number): (u32, u32), ci: u32, arm: bool) {
    let Some((eqn, _)) = called(func, number).find(|(_, row)| row.uar == uar) else { return };
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
        msix::raise(func, vector);
    }
}

/// Raises the completion event of CQ `cqn`.
pub(crate) fn completion(func: &mut Func<'_>, eqn: u32, cqn: u32) {
    push(func, eqn, Eqe::new(EventType::Comp, CompEvent::with(|s| s.cq_number(Cqn(cqn)))));
}

/// The event queues that receive events of `kind`.
fn listeners(func: &Func<'_>, kind: EventType) -> Vec<u32> {
    let bit = kind.raw();
    func.which::<EqRow>(|eq| eq.mask[usize::from(bit) / 64] >> (bit % 64) & 1 != 0)
}

/// The first event queue that receives events of `kind`.
pub(crate) fn listener(func: &Func<'_>, kind: EventType) -> Option<u32> {
    listeners(func, kind).first().copied()
}

/// Raises an event in every event queue that receives events of its kind.
pub(crate) fn broadcast(func: &mut Func<'_>, eqe: Eqe) {
    for eqn in listeners(func, eqe.event_type()) {
        push(func, eqn, eqe);
    }
}

/// Raises an event of a QP, SRQ or CQ of user context `uid`. It goes to an EQ of that context that subscribes to it,
/// otherwise to one of the function's own driver. If the driver has none, events of its objects go to all contexts that
/// subscribe to them.
pub(crate) fn affiliated(func: &mut Func<'_>, uid: u16, kind: EventType, data: impl EventData) {
    let mut wanting = listeners(func, kind);
    let of = |uid: u16| {
        let mut own =
            wanting.iter().filter(|eqn| func.row::<EqRow>(**eqn).is_some_and(|eq| eq.head.uid == uid));
        own.next().copied()
    };
    match of(uid).or_else(|| of(0)) {
        Some(eqn) => wanting = vec![eqn],
        None if uid != 0 => return,
        None => {}
    }
    for eqn in wanting {
        push(func, eqn, Eqe::new(kind, data));
    }
}

/// Raises an event of QP, SRQ or receive queue `number`.
pub(crate) fn queue(func: &mut Func<'_>, uid: u16, kind: EventType, (queue, number): (QueueKind, u32)) {
    affiliated(func, uid, kind, QpEvent::with(|s| s.kind(queue).qpn_rqn_sqn(Qpn(number))));
}

/// Reports the overflow of a CQ.
pub(crate) fn cq_error(func: &mut Func<'_>, uid: u16, cqn: u32) {
    let data = CqErrorEvent::with(|s| s.cqn(Cqn(cqn)).syndrome(CqErrorSyndrome::Overrun));
    affiliated(func, uid, EventType::CqError, data);
}
