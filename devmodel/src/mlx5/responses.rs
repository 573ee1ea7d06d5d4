//! The responder's output: responses to READs and atomics, then the pending acknowledgement (IBTA 9.7.5.1, 9.7.7).

use super::{
    completion, counter_of, event, event_of, flush, lists, receive, srq,
    step::Payload,
    work::{Failure, Work},
};
use crate::{
    host::Abort,
    translate::{self, User, access},
    transport::{self, Message, Reply},
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::CqeOpcode,
    handle::Psn,
    wire::{Aeth, AtomicAckEth, BthOpcode, Packet, Syndrome},
};

/// True if there are packets to send.
#[inline]
pub(crate) fn waiting(w: &Work<'_, '_, '_>) -> bool {
    w.q.responder.owes_answers() || w.q.responder.owes_ack()
}

/// Sends up to `budget` packets.
#[inline(always)]
pub(crate) fn run(w: &mut Work<'_, '_, '_>, budget: &mut u32) {
    if w.q.responder.owes_answers() && !answers(w, budget) || !w.q.responder.owes_ack() {
        return;
    }
    if *budget == 0 {
        w.ready = true;
        return;
    }
    *budget -= 1;
    let (psn, syndrome, ends) = w.q.responder.take_ack();
    w.send_ack(psn, syndrome);
    if ends {
        fail(w);
    }
}

/// Sends the pending acknowledgement of a QP that may not send more now, so that the peer's ACK timer does not expire. Earlier responses go
/// first, so the acknowledgement waits with them.
#[cold]
pub(crate) fn acknowledge(w: &mut Work<'_, '_, '_>, budget: u32) {
    let answers = matches!(w.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr);
    if answers && w.q.service == ServiceType::Rc.raw() && !w.q.responder.owes_answers() {
        run(w, &mut budget.min(1));
    }
}

/// Sends the pending responses to READs and atomics. False if there are more than may be sent now.
#[inline(never)]
fn answers(w: &mut Work<'_, '_, '_>, budget: &mut u32) -> bool {
    let mut alike = false;
    while let Some(reply) = transport::next_reply(w) {
        if *budget == 0 {
            w.ready = true;
            return false;
        }
        let middle = reply.opcode == BthOpcode::RcReadRespMiddle;
        if middle && alike && w.step.trains {
            if let Some((packets, payload)) = gather_train(w, &reply, *budget) {
                w.send_alike(reply.psn, false, packets, payload);
                *budget -= u32::from(packets);
                transport::replied(w, &reply, packets.into());
                continue;
            }
        }
        let payload = match gather(w, &reply) {
            Ok(payload) => payload,
            // The program that owns the memory has exited.
            Err(Abort::Gone) => {
                transport::finish(w);
                continue;
            }
            Err(_) => {
                transport::refuse_reply(w, &reply);
                break;
            }
        };
        if middle && alike {
            w.send_alike(reply.psn, false, 1, payload);
        } else {
            alike = w.send(&packet(w, &reply), &payload) && middle;
        }
        *budget -= 1;
        transport::replied(w, &reply, 1);
    }
    true
}

/// The headers of a response.
fn packet(w: &Work<'_, '_, '_>, reply: &Reply) -> Packet {
    let (mut aeth, mut atomic_ack) = (Aeth::zeroed(), AtomicAckEth::zeroed());
    aeth.set().syndrome(Syndrome::ACK).msn(Psn::new(reply.resource.msn));
    atomic_ack.set().original(reply.resource.original);
    Packet { bth: w.bth(reply.opcode, reply.psn.get()), aeth, atomic_ack, ..Packet::default() }
}

/// Ends the connection after a refused request: receive completion, event, ERR (IBTA 9.9.3).
#[cold]
pub(crate) fn fail(w: &mut Work<'_, '_, '_>) {
    let (uid, qpn) = (w.q.head.uid, w.qpn());
    let (code, status) = w.q.responder.refusal();
    match status {
        Some(status) if w.q.responder.rx.kind == Message::SEND => {
            let index = w.q.responder.rx.receive as u16;
            let cqe = completion::error(w, CqeOpcode::RespErr, Failure::of(status), index, 0);
            if let Some(counter) = counter_of(status) {
                w.count(counter);
            }
            completion::push(w, w.receiver.cqn, cqe, true);
            receive::done(w);
            w.q.responder.rx = Message::default();
        }
        Some(_) => {}
        None => event::queue(w.func, uid, event_of(code), qpn),
    }
    flush::enter_error(w);
}

/// Payload of as many MIDDLEs from `reply` on as fit in one frame. `None` if there are fewer than two; memory errors are detected when they
/// are sent one by one.
#[inline(never)]
fn gather_train(w: &mut Work<'_, '_, '_>, reply: &Reply, budget: u32) -> Option<(u16, Payload)> {
    let most = reply.middles().min(budget).min(lists::LONGEST_TRAIN);
    if most < 2 || w.q.service != ServiceType::Rc.raw() {
        return None;
    }
    let (one, mut pieces) = (&reply.resource, std::mem::take(&mut w.step.buffers.pieces));
    pieces.clear();
    let (at, user) = (one.va.wrapping_add(reply.from.into()), w.user());
    let need = access::REMOTE_READ;
    let found = translate::pieces(w.func, user, one.rkey, at, most * reply.len, need, &mut pieces);
    let train = found.ok().and_then(|()| lists::of_whole(&pieces, reply.len));
    w.step.buffers.pieces = pieces;
    train
}

/// Payload of a response.
fn gather(w: &mut Work<'_, '_, '_>, reply: &Reply) -> Result<Payload, Abort> {
    let (one, from, len) = (&reply.resource, reply.from, reply.len);
    if len == 0 {
        return Ok(Payload::Empty);
    }
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    pieces.clear();
    let at = one.va.wrapping_add(from.into());
    let pd = if one.xrc_srqn == 0 { w.receiver.pd } else { srq::domain(w, one.xrc_srqn) };
    let user = User { pd, qpn: w.qpn() };
    let found = translate::pieces(w.func, user, one.rkey, at, len, access::REMOTE_READ, &mut pieces);
    let rid = w.func.rid();
    let payload = match found {
        // With too many pieces the payload is copied; then earlier copies must be made first.
        Ok(()) if pieces.len() > 4 && !w.step.flush() => Err(Abort::Source),
        Ok(()) => lists::payload(w.step, rid, &pieces, false),
        Err(_) => Err(Abort::Source),
    };
    w.step.buffers.pieces = pieces;
    payload
}
