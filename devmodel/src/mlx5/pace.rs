//! The rate limit of a port: its function's queues wait once more has been sent than the limit allows (`VportRow::limit`).
//!
//! The frames of a turn are sent at once; then the time at which a port of that rate would have sent them is recorded. Until then, the
//! function's queues stay in the ready ring and a timer resumes them. Acknowledgements do not wait, so that the peers' ACK timers do not
//! expire during a long turn at a low rate. All of this applies only when the e-switch has been configured
//! ([`Region::is_switched`](crate::region::Region)).

use super::{responses, step::Step, work::Work};
use crate::region::{Func, TimerKind};

/// Idle time, ps, that a port may make up for at once, because runners wake up late.
const BURST: u64 = 4_000_000_000;
/// The longest wait, ps.
const LONGEST: u64 = 4_000_000_000_000;
/// Time of a byte at 1 Mb/s, ps.
const BYTE: u64 = 8_000_000;

/// The limit of the port, Mb/s; 0 is none.
fn limit(func: &Func<'_>) -> u64 {
    func.region().vport(func.fid()).limit.into()
}

/// True if a queue may send now. If there is a limit, the step ends after it, so that the sent bytes are accounted for.
#[cold]
pub(crate) fn may_send(func: &Func<'_>, step: &mut Step<'_>) -> bool {
    let limited = limit(func) != 0;
    step.yielded |= limited;
    !limited || !func.is_held()
}

/// Number of packets out of `budget` that the QP may send now.
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

/// Accounts for frames of `bytes` in total sent at `now`.
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
