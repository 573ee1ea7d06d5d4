//! Completions: entries of completion queues, and the arming of their events (PRM: completion queues).

use super::{
    event,
    step::Step,
    work::{Failure, QpStage},
};
use crate::{
    host::{Host, Iova},
    region::{Func, TimerKind},
    state::{Counters, CqRow, QpFlags},
    translate,
};
use hwspec::{
    context::{ArmState, CqStatus, qp::NO_USER_INDEX},
    cqe::{Cqe64, CqeError, CqeOpcode, CqeSyndrome},
    doorbell::CqArm,
    handle::{Qpn, Srqn},
};

/// Picoseconds per unit of `cq_period`.
const PERIOD_PS: u64 = 1_000_000;

/// The time as reported in CQEs and by the internal timer: nanoseconds (`device_frequency_khz`).
#[inline(always)]
pub(crate) fn timestamp(now: u64) -> u64 {
    now / 1000
}

/// The number that a CQE carries in addition to the QP number: the user index, or the SRQ of a receive.
pub(crate) fn user_index(w: &QpStage<'_, '_, '_>, receive: bool) -> u32 {
    match w.receiver.user_index & NO_USER_INDEX {
        NO_USER_INDEX if receive && w.q.has(QpFlags::HAS_SRQ) => w.receiver.srqn & 0xff_ffff,
        NO_USER_INDEX => 0,
        index => index,
    }
}

/// Completes WQE `wqe` of the QP with an error, and counts it. Returns as [`append`] does.
#[cold]
pub(crate) fn fail(
    w: &mut QpStage<'_, '_, '_>,
    kind: CqeOpcode,
    failure: Failure,
    wqe: u16,
    opcode: u8,
) -> bool {
    let receive = kind == CqeOpcode::RespErr;
    w.count(if receive { Counters::RespCqeError } else { Counters::ReqCqeError });
    if failure.syndrome == CqeSyndrome::WrFlushErr {
        w.count(if receive { Counters::RespCqeFlushError } else { Counters::ReqCqeFlushError });
    }
    let cqn = if receive { w.receiver.cqn } else { w.q.cqn_snd };
    let cqe = error(kind, failure, (w.qpn(), user_index(w, receive)), wqe, opcode);
    append(w.func, w.step, cqn, cqe, true)
}

/// The error CQE of WQE `wqe` of a queue with this number and user index.
#[cold]
pub(crate) fn error(
    kind: CqeOpcode,
    failure: Failure,
    (number, user): (u32, u32),
    wqe: u16,
    opcode: u8,
) -> Cqe64 {
    let mut cqe = CqeError::zeroed();
    cqe.set()
        .srqn(Srqn(user))
        .vendor_err_synd(failure.vendor)
        .syndrome(failure.syndrome)
        .s_wqe_opcode(opcode)
        .qpn(Qpn(number))
        .wqe_counter(wqe)
        .opcode(kind);
    Cqe64::from_bytes(*cqe.as_bytes())
}

/// Appends `cqe` to CQ `cqn`. False if the CQ is full, broken or destroyed, or the job has no room for more effects: the queue must go
/// to ERR. If the CQ became full, its error event was raised.
pub(crate) fn append(
    func: &mut Func<'_>,
    step: &mut Step<'_>,
    cqn: u32,
    cqe: Cqe64,
    solicited: bool,
) -> bool {
    let Some(place) = place(func, step, cqn, solicited) else { return false };
    let owner = place.owner();
    *place = cqe;
    place.set().owner(owner);
    true
}

/// Reserves the next CQE and returns it zeroed except for the owner bit, so that the caller fills it in place. Returns `None`
/// where [`append`] would return false.
#[inline(always)]
pub(crate) fn place<'f>(
    func: &'f mut Func<'_>,
    step: &mut Step<'_>,
    cqn: u32,
    solicited: bool,
) -> Option<&'f mut Cqe64> {
    let index = func.index::<CqRow>(cqn)?;
    let mut row = func.hold::<CqRow>(index)?;
    let size = 1u32 << row.log_size;
    let pi = row.pi;
    if row.status != u32::from(CqStatus::Ok.raw()) {
        return None;
    }
    let (at, owner) = next_entry(func, &row);
    let full = |ci: u32| pi.wrapping_sub(ci) & 0xff_ffff >= size;
    let ignore_overrun = row.flags & CqRow::OVERRUN_IGNORED != 0;
    if full(row.ci) && !ignore_overrun {
        row.ci = consumed(func, step.host, &row);
    }
    let Some(at) = at.filter(|_| ignore_overrun || !full(row.ci)) else {
        overrun(func, &mut row, cqn);
        return None;
    };
    // Before any other state refers to the entry.
    let noted = func.note_completion(at)?;
    row.pi = pi.wrapping_add(1);
    if solicited {
        row.solicited = row.pi;
    }
    row.since_event = row.since_event.wrapping_add(1);
    let fires = match ArmState::from_raw(row.arm as u8) {
        ArmState::Armed => true,
        ArmState::SolicitedArmed => solicited,
        _ => false,
    };
    if fires {
        raise_or_moderate(func, step.now, index);
    }
    let cqe = func.noted_completion(noted);
    cqe.set().owner(owner);
    Some(cqe)
}

/// The bus address of the next CQE, and its owner bit. Entries of 128 bytes hold it at their end.
#[inline(always)]
pub(crate) fn next_entry(func: &Func<'_>, row: &CqRow) -> (Option<Iova>, bool) {
    let log_cqe = if row.cqe_size == 1 { 7 } else { 6 };
    let collapsed = row.flags & CqRow::COLLAPSED != 0;
    let slot = if collapsed { 0 } else { (row.pi & ((1 << row.log_size) - 1)) << log_cqe };
    let at = translate::queue(func, &row.memory, slot + (1 << log_cqe) - Cqe64::SIZE as u32);
    (at, row.pi >> row.log_size & 1 != 0)
}

/// The driver's consumer index, read from the doorbell record if it can be.
#[inline(never)]
pub(crate) fn consumed(func: &Func<'_>, host: &mut dyn Host, row: &CqRow) -> u32 {
    let mut word = [0; 4];
    match host.read(func.rid(), row.dbr, &mut word) {
        Ok(()) => u32::from_be_bytes(word) & 0xff_ffff,
        Err(_) => row.ci,
    }
}

/// Breaks the CQ: it has no room.
#[cold]
fn overrun(func: &mut Func<'_>, row: &mut CqRow, cqn: u32) {
    row.status = CqStatus::Overflow.raw().into();
    event::cq_error(func, row.head.uid, cqn);
}

/// Handles a new completion of an armed CQ: raises its event or, if it is moderated, waits for more completions or the end of its
/// period (`cq_max_count`, `cq_period`; not moderated if either is 0).
#[inline(never)]
fn raise_or_moderate(func: &mut Func<'_>, now: u64, index: u32) {
    let Some(row) = func.row_mut::<CqRow>(index) else { return };
    let [period, count] = row.moderation;
    if period != 0 && row.since_event < count.into() {
        if row.event_at == 0 {
            row.event_at = now + u64::from(period) * PERIOD_PS;
        }
        let at = row.event_at;
        if func.arm_timer(index, TimerKind::Cq, at) {
            return;
        }
    }
    fire(func, index);
}

/// Raises the event and disarms the CQ.
fn fire(func: &mut Func<'_>, index: u32) {
    let cqn = func.number::<CqRow>(index);
    let Some(row) = func.row_mut::<CqRow>(index) else { return };
    row.arm = ArmState::Fired.raw().into();
    row.since_event = 0;
    row.event_at = 0;
    let eqn = row.eqn;
    event::completion(func, eqn, cqn);
}

/// Handles a timer of CQ `index`. The time in its row is authoritative: the event may have been raised meanwhile, or be awaited
/// for later completions.
pub(crate) fn expire(func: &mut Func<'_>, now: u64, index: u32) {
    let Some(row) = func.row::<CqRow>(index) else { return };
    match row.event_at {
        0 => {}
        at if at <= now => fire(func, index),
        at => {
            if !func.arm_timer(index, TimerKind::Cq, at) {
                fire(func, index);
            }
        }
    }
}

/// CQ arm register: raises the event at once if there are completions that the driver has not seen and that no event has reported
/// (for a solicited request, one that was solicited or an error). The device remembers the last reported completion
/// (`last_notified_index` of the context), so a driver that arms before it polls gets no second event for one completion.
pub(crate) fn arm(func: &mut Func<'_>, now: u64, cqn: u32, value: u32) {
    let mut bytes = [0; CqArm::SIZE];
    bytes[..4].copy_from_slice(&value.to_be_bytes());
    let request = CqArm::from_bytes(bytes);
    let Some(index) = func.index::<CqRow>(cqn) else { return };
    let Some(row) = func.row_mut::<CqRow>(index) else { return };
    let ci = request.ci();
    let behind = row.pi.wrapping_sub(ci) & 0xff_ffff;
    row.ci = ci;
    row.arm_sn = request.cmd_sn().into();
    let behind_solicited = row.pi.wrapping_sub(row.solicited) & 0xff_ffff;
    let unreported = behind.min(row.since_event);
    let fires = if request.solicited() {
        // The latest solicited completion is among the unreported ones.
        row.solicited != 0 && behind_solicited < unreported
    } else {
        unreported != 0
    };
    let state = if request.solicited() { ArmState::SolicitedArmed } else { ArmState::Armed };
    row.arm = state.raw().into();
    if fires {
        raise_or_moderate(func, now, index);
    }
}
