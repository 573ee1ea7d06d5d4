//! Packets of connections: requests go to the responder, responses to the requester; the resulting responses are scheduled.
//! Packets are checked first, in the order of IBTA 9.6.

use super::{acks, datagram, packet::Packet, rates, receive, responder, work::QpStage};
use crate::{
    Conformance,
    state::{Counters, QpFlags},
    transport::{self, Message},
};
use hwspec::{
    context::{QpState, ServiceType},
    eqe::EventType,
    handle::Psn,
    wire::{BthOpcode, NakCode},
};

/// Handles a packet for the QP.
#[inline(always)]
pub(crate) fn arrive(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
    if check(w, packet) {
        execute(w, packet);
    }
    schedule_responses(w);
}

/// Handles a train of MIDDLEs for the QP at once. False if its packets must be handled one by one.
pub(crate) fn arrive_in_train(w: &mut QpStage<'_, '_, '_>, packets: &Packet<'_>) -> bool {
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
fn schedule_responses(w: &mut QpStage<'_, '_, '_>) {
    if responder::waiting(w) {
        // With more frames waiting, one acknowledgement may cover those as well (IBTA 9.7.5.1.1: coalescing).
        if w.step.more_inline || w.func.has_frame() {
            w.ready = true;
        } else {
            w.execute = true;
        }
    }
}

/// Passes a response to the requester, and any other packet to the responder.
#[inline]
fn execute(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
    let opcode = packet.headers.bth().opcode();
    if opcode == BthOpcode::Cnp {
        return rates::notified(w);
    }
    if packet.headers.is_ce_marked() {
        rates::notify(w);
    }
    if w.state() == QpState::Rtr && !w.q.has(QpFlags::COMM_EST) {
        // IBTA 11.6.3.1: communication established, before the program has moved the QP to RTS.
        w.q.set(QpFlags::COMM_EST, true);
        w.raise(EventType::CommEst);
    }
    if opcode.is_response() {
        acks::answer(w, packet);
    } else if opcode.is_known() || w.profile() == Conformance::Cx5 {
        transport::request(w, packet);
    } else {
        // A reserved opcode: neither executed nor answered.
        w.count(Counters::RxDroppedQp);
    }
}

/// [`arrive`] for services other than RC. RC, the most frequent, bypasses this dispatch.
#[cold]
pub(crate) fn arrive_unlike_rc(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
    match ServiceType::from_raw(w.q.service) {
        ServiceType::Uc => arrive_unreliable(w, packet),
        ServiceType::Xrc => arrive_extended(w, packet),
        ServiceType::RegUmr => {}
        _ => datagram::arrive(w, packet),
    }
}

/// Handles a packet for a QP of UC, which sends no responses (IBTA 9.8.2).
fn arrive_unreliable(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
    if !check(w, packet) {
        return;
    }
    match packet.headers.bth().opcode() {
        // It is outside the PSN sequence.
        BthOpcode::Cnp => rates::notified(w),
        opcode if opcode.is_known() => transport::unreliable_request(w, packet),
        _ => w.count(Counters::RxDroppedQp),
    }
}

/// Handles a packet for a QP of XRC (annex A14): a target accepts requests, an initiator responses.
fn arrive_extended(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
    // Checked first, because a packet that is dropped must not select the SRQ.
    if !check(w, packet) {
        return;
    }
    let target_qp = w.q.has(QpFlags::NO_SQ);
    if packet.headers.bth().opcode().is_request() != target_qp {
        return w.count(Counters::RxDroppedQp);
    }
    let srqn = packet.headers.xrceth().map_or(0, |eth| eth.srqn().0);
    if target_qp && packet.headers.bth().psn() == Psn::new(w.q.responder.psn) {
        // All packets of a message name one SRQ; its receive was taken with the first packet.
        let astray = w.q.responder.rx.kind != Message::NONE && srqn != w.q.xrc_srqn;
        if !astray {
            w.q.xrc_srqn = srqn;
        }
        if (astray || receive::named(w, srqn).is_none()) && !w.q.responder.is_refusing() {
            // A14: no such SRQ in the QP's domain.
            w.q.responder.refuse(NakCode::InvalidRequest, None);
            w.execute = true;
            return;
        }
    }
    if receive::select(w, srqn) {
        execute(w, packet);
        schedule_responses(w);
    }
}

/// False if [`refusal`] finds a reason to drop the packet silently.
#[inline(always)]
fn check(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) -> bool {
    let refusal = refusal(w, packet);
    if let Some(counter) = refusal {
        w.count(counter);
    }
    refusal.is_none()
}

/// The counter of a packet to drop: its QP has another transport or is in the wrong state, it is not from the address the QP is
/// connected to, or its partition does not match (IBTA 9.6.1).
#[inline(always)]
fn refusal(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) -> Option<Counters> {
    let bth = packet.headers.bth();
    let opcode = bth.opcode();
    // The upper three bits give the transport even for undefined opcodes.
    let transport = opcode.transport() == w.q.transport();
    if !w.receives() || !transport && opcode != BthOpcode::Cnp || !w.is_from_peer(packet) {
        return Some(Counters::RxDroppedQp);
    }
    (!w.takes_partition(bth.pkey())).then_some(Counters::RxDroppedPkey)
}
