//! Answers of the responder: READ responses and atomic acknowledges in order, then the acknowledgement owed
//! (IBTA 9.7.5.1, 9.7.7).

use super::{
    completion, counter_of, event, event_of, flush, lists, receive, srq,
    step::Payload,
    work::{Failure, Work},
};
use crate::{
    host::Abort,
    translate::{self, User, access},
    transport::{Message, ReadResource},
};
use hwspec::{
    cqe::CqeOpcode,
    handle::Psn,
    wire::{Aeth, AtomicAckEth, BthOpcode, NakCode, Packet, Syndrome},
};

/// Whether anything is to be sent.
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

/// Sends what READs and atomics are owed. False if there is more than may be sent now.
#[inline(never)]
fn answers(w: &mut Work<'_, '_, '_>, budget: &mut u32) -> bool {
    while w.q.responder.owes_answers() {
        let at = w.q.responder.send;
        let one = *w.func.read_resource(w.qp, at);
        if one.answered != ReadResource::ANSWERED {
            let whole = match one.kind == ReadResource::READ {
                true => read(w, &one, budget),
                false => atomic(w, &one, budget),
            };
            match whole {
                Some(true) => w.func.read_resource_mut(w.qp, at).answered = ReadResource::ANSWERED,
                Some(false) => {
                    w.ready = true;
                    return false;
                }
                None => {
                    // The key died under the READ: everything from here on is refused.
                    w.q.responder.send = w.q.responder.tail;
                    w.q.responder.packet = 0;
                    break;
                }
            }
        }
        w.q.responder.send = at.wrapping_add(1);
        w.q.responder.packet = 0;
    }
    true
}

/// The QP refused a request for good: receive completion, event, ERR (IBTA 9.9.3).
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
            completion::push(w, w.q.cqn_rcv, cqe, true);
            receive::done(w);
            w.q.responder.rx = Message::default();
        }
        Some(_) => {}
        None => event::queue(w.func, uid, event_of(code), qpn),
    }
    flush::enter_error(w);
}

/// Responses of one READ from where they stand. `Some(true)` if all are out, `None` if its key is no longer good.
fn read(w: &mut Work<'_, '_, '_>, one: &ReadResource, budget: &mut u32) -> Option<bool> {
    let mtu = u32::from(w.q.mtu.max(256));
    let packets = (one.end - one.start).div_ceil(mtu).max(1);
    let base = Psn::new(one.psn).add(one.start / mtu);
    let mut alike = false;
    while w.q.responder.packet < packets {
        if *budget == 0 {
            return Some(false);
        }
        let i = w.q.responder.packet;
        let from = one.start + i * mtu;
        let len = mtu.min(one.end - from);
        let psn = base.add(i).get();
        let payload = match gather(w, one, from, len) {
            Ok(payload) => payload,
            // Nobody answers for it any more.
            Err(Abort::Gone) => return Some(true),
            Err(_) => {
                w.q.responder.refuse_at(psn, NakCode::RemoteAccess, None);
                return None;
            }
        };
        let opcode = match (i == 0, i + 1 == packets) {
            (true, true) => BthOpcode::RcReadRespOnly,
            (true, false) => BthOpcode::RcReadRespFirst,
            (false, false) => BthOpcode::RcReadRespMiddle,
            (false, true) => BthOpcode::RcReadRespLast,
        };
        let middle = opcode == BthOpcode::RcReadRespMiddle;
        if middle && alike {
            w.send_alike(psn, false, payload);
        } else {
            let packet = Packet { bth: w.bth(opcode, psn), aeth: aeth(one.msn), ..Packet::default() };
            alike = w.send(&packet, &payload) && middle;
        }
        *budget -= 1;
        w.q.responder.packet = i + 1;
    }
    Some(true)
}

fn gather(w: &mut Work<'_, '_, '_>, one: &ReadResource, from: u32, len: u32) -> Result<Payload, Abort> {
    if len == 0 {
        return Ok(Payload::Empty);
    }
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    pieces.clear();
    let at = one.va.wrapping_add(from.into());
    let pd = if one.xrc_srqn == 0 { w.q.pd } else { srq::domain(w, one.xrc_srqn) };
    let user = User { pd, qpn: w.qpn() };
    let found = translate::pieces(w.func, user, one.rkey, at, len, access::REMOTE_READ, &mut pieces);
    let rid = w.func.rid();
    let payload = match found {
        // Taken by value only when there are too many pieces; then earlier copies must have been made.
        Ok(()) if pieces.len() > 4 && !w.step.flush() => Err(Abort::Source),
        Ok(()) => lists::payload(w.step, rid, &pieces, false),
        Err(_) => Err(Abort::Source),
    };
    w.step.buffers.pieces = pieces;
    payload
}

fn aeth(msn: u32) -> Aeth {
    let mut aeth = Aeth::zeroed();
    aeth.set().syndrome(Syndrome::ACK).msn(Psn::new(msn));
    aeth
}

fn atomic(w: &mut Work<'_, '_, '_>, one: &ReadResource, budget: &mut u32) -> Option<bool> {
    if *budget == 0 {
        return Some(false);
    }
    let mut atomic_ack = AtomicAckEth::zeroed();
    atomic_ack.set().original(one.original);
    let bth = w.bth(BthOpcode::RcAtomicAck, one.psn);
    w.send(&Packet { bth, aeth: aeth(one.msn), atomic_ack, ..Packet::default() }, &Payload::Empty);
    *budget -= 1;
    Some(true)
}
