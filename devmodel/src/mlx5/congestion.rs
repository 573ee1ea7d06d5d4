//! Congestion notification packets (annex A17.9.3), and turns of queue pairs that were notified.

use super::{responses, step::Payload, work::Work};
use crate::{region::TimerKind, state::Counters, transport::Requests};
use hwspec::{
    context::ServiceType,
    wire::{BthOpcode, Packet},
};

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

/// The turn of a QP whose rate is limited: `run` may send a packet if it is time for one. Until then a timer waits. Acknowledgements do
/// not: the peer would lose patience.
#[cold]
pub(crate) fn take_turn(
    w: &mut Work<'_, '_, '_>,
    budget: u32,
    run: impl FnOnce(&mut Work<'_, '_, '_>, &mut u32),
) {
    let now = w.step.now;
    let (congestion, parameters) = w.congestion();
    let waits = congestion.waits(now, parameters);
    if congestion.is_over() {
        w.q.requester.limit(false);
        return run(w, &mut budget.clone());
    }
    if let Some(at) = waits {
        if w.q.service == ServiceType::Rc.raw() && !w.q.responder.owes_answers() {
            responses::run(w, &mut budget.min(1));
        }
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
