//! Unreliable connection: the requests of RC, without responses (IBTA 9.8.2).

use super::{
    congestion, flush,
    received::{Packet, check},
    requester,
    work::Work,
};
use crate::{
    state::Counters,
    transport::{self, Timer},
};
use hwspec::{context::QpState, wire::BthOpcode};

/// Sends up to `budget` packets. A sent packet is done.
pub(crate) fn run(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    loop {
        if w.state() == QpState::SqErr {
            return flush::stop(w);
        }
        requester::run(w, budget);
        if w.q.requester.is_acknowledged() || matches!(w.state(), QpState::Err | QpState::SqErr) {
            w.q.requester.timers.stop(Timer::Ack);
            return;
        }
        transport::complete_sent(w);
    }
}

/// Handles a packet for the QP.
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    if !check(w, packet) {
        return;
    }
    match packet.headers.bth().opcode() {
        // It is outside the PSN sequence.
        BthOpcode::Cnp => congestion::notified(w),
        opcode if opcode.is_known() => transport::unreliable_request(w, packet),
        _ => w.count(Counters::RxDroppedQp),
    }
}
