//! Packets of a reliable connection: requests go to the responder, responses to the requester; the resulting responses are
//! scheduled.

use super::{
    acks, congestion, event,
    received::{Packet, check, refusal},
    responses,
    work::Work,
};
use crate::{
    Profile,
    state::{Counters, QpFlags},
    transport,
};
use hwspec::{context::QpState, eqe::EventType, wire::BthOpcode};

/// Handles a packet for the QP.
#[inline(always)]
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    if check(w, packet) {
        execute(w, packet);
    }
    schedule_responses(w);
}

/// Handles a train of MIDDLEs for the QP at once. False if its packets must be handled one by one.
pub(crate) fn arrive_in_train(w: &mut Work<'_, '_, '_>, packets: &Packet<'_>) -> bool {
    let plain = w.q.has(QpFlags::COMM_EST) || w.state() != QpState::Rtr;
    if !plain || packets.headers.is_ce_marked() || refusal(w, packets).is_some() {
        return false;
    }
    let done = match packets.headers.bth().opcode().is_response() {
        true => acks::answer_train(w, packets),
        false => transport::train(w, packets),
    };
    if done {
        schedule_responses(w);
    }
    done
}

/// Schedules the QP's pending responses.
#[inline(always)]
fn schedule_responses(w: &mut Work<'_, '_, '_>) {
    if responses::waiting(w) {
        // With more frames waiting, one acknowledgement may cover those as well (IBTA 9.7.5.1.1: coalescing).
        if w.step.more_in_hand || w.func.has_frame() {
            w.ready = true;
        } else {
            w.execute = true;
        }
    }
}

/// Handles a packet of a reliable connection that passed [`check`].
pub(crate) fn accept_checked(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    execute(w, packet);
    schedule_responses(w);
}

/// IBTA 11.6.3.1: communication established, before the program has moved the QP to RTS.
#[cold]
fn note_established(w: &mut Work<'_, '_, '_>) {
    w.q.set(QpFlags::COMM_EST, true);
    let (uid, qpn) = (w.q.head.uid, w.qpn());
    event::queue(w.func, uid, EventType::CommEst, qpn);
}

/// Passes a response to the requester, and any other packet to the responder.
#[inline]
fn execute(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let opcode = packet.headers.bth().opcode();
    if opcode == BthOpcode::Cnp {
        return congestion::notified(w);
    }
    if packet.headers.is_ce_marked() {
        congestion::notify(w);
    }
    if w.state() == QpState::Rtr && !w.q.has(QpFlags::COMM_EST) {
        note_established(w);
    }
    if opcode.is_response() {
        acks::answer(w, packet);
    } else if opcode.is_known() || w.profile() == Profile::Cx5 {
        transport::request(w, packet);
    } else {
        // A reserved opcode: neither executed nor answered.
        w.count(Counters::RxDroppedQp);
    }
}
