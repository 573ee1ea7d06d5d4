//! Congestion notification packets (annex A17.9.3), and turns of queue pairs that were notified.

use super::{responses, step::Payload, work::Work};
use crate::{region::TimerKind, state::Counters, transport::Requests};
use hwspec::wire::{BthOpcode, Packet};

/// DSCP 48, as network control traffic.
const TRAFFIC_CLASS: u8 = 48 << 2;

/// Tells the peer that a packet of its QP met congestion.
#[cold]
pub(crate) fn notify(w: &mut Work<'_, '_, '_>) {
    let (now, config) = (w.step.now, w.step.config);
    if !w.q.responder.notifier.on_mark(now, &config.dcqcn) {
        return;
    }
    let mut bth = w.bth(BthOpcode::Cnp, 0);
    bth.set().becn(true);
    w.send_as(&Packet { bth, ..Packet::default() }, &Payload::Empty, TRAFFIC_CLASS);
    w.count(Counters::NpCnpSent);
}

/// The turn of a QP whose rate is limited: `run` may send a packet if it is time for one. Until then a timer waits.
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
