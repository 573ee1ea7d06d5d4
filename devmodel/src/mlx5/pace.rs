//! The rate of a port: what its function sends waits once more has gone out than the limit allows (`VportRow::limit`).
//!
//! The frames of a turn leave at once; then it is noted when a port of that rate would be done with them. While that lies ahead, the
//! function's queues stay in the ready ring, until a timer lets them go on. Acknowledgements do not wait: behind a long turn at a low rate
//! their peers would lose patience. All of this is asked only where the e-switch was told something
//! ([`Region::is_switched`](crate::region::Region)).

use super::{responses, step::Step, work::Work};
use crate::region::{Func, TimerKind};

/// The idle time, ps, for which a port may make up at once: wakes come late, and what was missed is made up for.
const BURST: u64 = 4_000_000_000;
/// The longest wait, ps.
const LONGEST: u64 = 4_000_000_000_000;
/// Time of a byte at 1 Mb/s, ps.
const BYTE: u64 = 8_000_000;

/// The limit of the port, Mb/s; 0 is none.
fn limit(func: &Func<'_>) -> u64 {
    func.region().vport(func.fid()).limit.into()
}

/// True if a queue may send now. If so, and there is a limit, the step ends behind it, so that what it sent is noted.
#[cold]
pub(crate) fn may_send(func: &Func<'_>, step: &mut Step<'_>) -> bool {
    let limited = limit(func) != 0;
    step.yielded |= limited;
    !limited || !func.is_held()
}

/// Packets of `budget` that the QP may send now.
#[cold]
pub(crate) fn budget(w: &mut Work<'_, '_, '_>, budget: u32) -> u32 {
    if may_send(w.func, w.step) {
        return match limit(w.func) {
            0 => budget,
            limit => budget.min((BURST * limit / (BYTE * u64::from(w.q.mtu.max(256)))).max(1) as u32),
        };
    }
    responses::acknowledge(w, budget);
    0
}

/// Frames of `bytes` in all went out at `now`.
#[cold]
pub(crate) fn sent(func: &mut Func<'_>, now: u64, bytes: u64) {
    let limit = limit(func);
    if limit == 0 {
        return;
    }
    let since = func.function().port_free.max(now.saturating_sub(BURST));
    let free = (since + bytes * BYTE / limit).min(now + LONGEST);
    *func.function_mut(|f| &mut f.port_free) = free;
    if free > now {
        func.arm_timer(0, TimerKind::Pace, free);
    }
}
