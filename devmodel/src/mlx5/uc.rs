//! Unreliable connection: RC's requests without answers (IBTA 9.8.2).

use super::{
    completion, flush,
    received::{Packet, check},
    requester,
    work::{Failure, Work},
};
use crate::{
    state::{Counters, QpFlags},
    transport::{self, Message, Status},
};
use hwspec::{context::QpState, cqe::CqeOpcode, handle::Psn};

/// Sends up to `budget` packets. What is sent is done.
pub(crate) fn run(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    loop {
        if w.state() == QpState::SqErr {
            return flush::stop(w);
        }
        requester::run(w, budget);
        if w.q.requester.is_acknowledged() || matches!(w.state(), QpState::Err | QpState::SqErr) {
            w.q.requester.ack_deadline = 0;
            return;
        }
        w.q.requester.una_psn = w.q.requester.max_psn;
        transport::settle(w, None);
        w.q.requester.ack_deadline = 0;
    }
}

/// A packet for the QP. What is out of sequence ends the message under reception (IBTA 9.8.2.2.1).
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    if !check(w, packet) {
        return;
    }
    let bth = packet.headers.bth();
    let opcode = bth.opcode();
    if !opcode.is_known() {
        return w.count(Counters::RxDroppedQp);
    }
    let in_order = bth.psn() == Psn::new(w.q.responder.psn);
    if !in_order {
        w.count(Counters::OutOfSequence);
    }
    if !in_order || opcode.is_first() {
        abandon(w);
    }
    w.q.responder.psn = bth.psn().get();
    let begun = w.q.responder.rx.kind != Message::NONE;
    if (begun || opcode.is_first()) && transport::unanswered(w, packet) {
        return;
    }
    // Dropped: with what else comes of its message.
    abandon(w);
    w.q.responder.psn = bth.psn().add(1).get();
}

/// Forgets the message under reception. Its receive WQE takes the next one; one that came from an SRQ goes back with an
/// error, for others may have been taken since (IBTA 9.9.3.1, class E).
fn abandon(w: &mut Work<'_, '_, '_>) {
    if w.q.responder.rx.kind == Message::SEND && w.q.has(QpFlags::HAS_SRQ) {
        let aborted = Failure::of(Status::RemoteAborted);
        let cqe = completion::error(w, CqeOpcode::RespErr, aborted, w.q.responder.rx.receive as u16, 0);
        completion::push(w, w.q.cqn_rcv, cqe, true);
    }
    w.q.responder.rx = Message::default();
}
