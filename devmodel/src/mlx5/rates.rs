//! Limits of the rate at which packets are sent: by congestion control for a queue pair (annex A17.9.3), and by the e-switch's manager for
//! a port.

use super::{
    header_cache::TrafficClass,
    responder,
    step::{Payload, Step},
    work::QpStage,
};
use crate::{
    region::{Func, TimerKind},
    state::Counters,
    transport::{self, Requests},
};
use hwspec::wire::{BthOpcode, Packet};

/// Notifies the peer after a packet of a QP arrived with a congestion mark.
#[cold]
pub(crate) fn notify(w: &mut QpStage<'_, '_, '_>) {
    w.count(Counters::NpEcnMarkedRocePackets);
    let (now, p, priority) = (w.step.now, *w.step.dcqcn(), w.q.path.sl & 7);
    if p.np_off >> priority & 1 != 0 || !w.q.responder.notifier.on_mark(now, &p) {
        return;
    }
    let mut bth = w.bth(BthOpcode::Cnp, 0);
    bth.set().becn(true);
    let class = TrafficClass {
        traffic_class: p.cnp_dscp << 2,
        priority: if p.cnp_prio_mode { priority } else { p.cnp_802p_prio & 7 },
    };
    w.send_along(None, &Packet { bth, ..Packet::default() }, &Payload::Empty, class);
    w.count(Counters::NpCnpSent);
}

/// Handles a congestion notification from the peer of a QP.
#[cold]
pub(crate) fn notified(w: &mut QpStage<'_, '_, '_>) {
    let off = w.step.dcqcn().rp_off;
    match off >> (w.q.path.sl & 7) & 1 {
        0 => transport::congestion_notified(w),
        _ => w.count(Counters::RpCnpIgnored),
    }
}

/// The turn of a rate-limited QP: `run` may send a packet if one is due. Otherwise a timer is armed.
#[cold]
pub(crate) fn take_limited_turn(
    w: &mut QpStage<'_, '_, '_>,
    mut budget: u32,
    run: impl FnOnce(&mut QpStage<'_, '_, '_>, &mut u32),
) {
    let now = w.step.now;
    let (congestion, parameters) = w.congestion();
    let waits = congestion.waits(now, parameters);
    if congestion.is_over() {
        w.q.requester.limit(false);
        return run(w, &mut budget);
    }
    if let Some(at) = waits {
        responder::acknowledge(w, budget);
        w.func.arm_timer(w.qp, TimerKind::Rate, at);
        return;
    }
    let first = w.step.buffers.out.len();
    run(w, &mut budget.min(1));
    let sent = w.step.buffers.out.get(first..).unwrap_or(&[]);
    let bytes = sent.iter().map(|frame| u64::from(frame.header_len) + frame.payload.len() as u64).sum();
    let (congestion, parameters) = w.congestion();
    congestion.on_send(now, bytes, parameters);
}

/// Idle time, ps, that a port may make up for at once, because runners wake up late.
const BURST: u64 = 4_000_000_000;
/// The longest wait, ps.
const LONGEST: u64 = 4_000_000_000_000;
/// Time of a byte at 1 Mb/s, ps.
const BYTE: u64 = 8_000_000;

// The rate limit of a port (`VportRow::limit`). The frames of a turn are sent at once; then the time at which a port of that rate would
// have sent them is recorded. Until then, the function's queues stay in the ready ring and a timer resumes them. Acknowledgements do not
// wait, so that the peers' ACK timers do not expire during a long turn at a low rate. All of this applies only when the e-switch has been
// configured (`Region::is_switched`).

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
pub(crate) fn budget(w: &mut QpStage<'_, '_, '_>, budget: u32) -> u32 {
    if may_send(w.func, w.step) {
        return match limit(w.func) {
            0 => budget,
            limit => budget.min((BURST * limit / (BYTE * u64::from(w.q.mtu.max(256)))).max(1) as u32),
        };
    }
    responder::acknowledge(w, budget);
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
