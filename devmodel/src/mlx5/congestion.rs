//! Congestion notification packets (annex A17.9.3), and turns of rate-limited queue pairs.

use super::{flow::Class, responses, step::Payload, work::Work};
use crate::{
    region::TimerKind,
    state::Counters,
    transport::{self, Requests},
};
use hwspec::wire::{BthOpcode, Packet};

/// Notifies the peer after a packet of a QP arrived with a congestion mark.
#[cold]
pub(crate) fn notify(w: &mut Work<'_, '_, '_>) {
    w.count(Counters::NpEcnMarkedRocePackets);
    let (now, p, priority) = (w.step.now, *w.step.dcqcn(), w.q.path.sl & 7);
    if p.np_off >> priority & 1 != 0 || !w.q.responder.notifier.on_mark(now, &p) {
        return;
    }
    let mut bth = w.bth(BthOpcode::Cnp, 0);
    bth.set().becn(true);
    let class = Class::new(p.cnp_dscp << 2, if p.cnp_prio_mode { priority } else { p.cnp_802p_prio });
    w.send_along(None, &Packet { bth, ..Packet::default() }, &Payload::Empty, class);
    w.count(Counters::NpCnpSent);
}

/// Handles a congestion notification from the peer of a QP.
#[cold]
pub(crate) fn notified(w: &mut Work<'_, '_, '_>) {
    let off = w.step.dcqcn().rp_off;
    match off >> (w.q.path.sl & 7) & 1 {
        0 => transport::congestion_notified(w),
        _ => w.count(Counters::RpCnpIgnored),
    }
}

/// The turn of a rate-limited QP: `run` may send a packet if one is due. Otherwise a timer is armed.
#[cold]
pub(crate) fn take_turn(
    w: &mut Work<'_, '_, '_>,
    mut budget: u32,
    run: impl FnOnce(&mut Work<'_, '_, '_>, &mut u32),
) {
    let now = w.step.now;
    let (congestion, parameters) = w.congestion();
    let waits = congestion.waits(now, parameters);
    if congestion.is_over() {
        w.q.requester.limit(false);
        return run(w, &mut budget);
    }
    if let Some(at) = waits {
        responses::acknowledge(w, budget);
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
