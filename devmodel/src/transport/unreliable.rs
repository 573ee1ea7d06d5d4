//! Unreliable connection: the requests of a reliable one, without responses (IBTA 9.8.2).

use super::{
    Event, Message, Timer,
    requester::{Requests, settle},
    responder::{Packet, Responses, unanswered},
};
use hwspec::handle::Psn;

/// Treats all sent requests as done: there are no acknowledgements (IBTA 9.8.2.1).
pub(crate) fn complete_sent<R: Requests>(r: &mut R) {
    let q = r.requester_mut();
    q.una_psn = q.max_psn;
    settle(r, None);
    r.requester_mut().timers.stop(Timer::Ack);
}

/// Handles a request with a known opcode. One out of sequence aborts the message being received (IBTA
/// 9.8.2.2.1).
pub(crate) fn unreliable_request<X: Responses>(x: &mut X, packet: &X::Packet<'_>) {
    let (psn, first) = (packet.bth().psn(), packet.bth().opcode().is_first());
    let in_order = psn == Psn::new(x.responder().psn);
    if !in_order {
        x.note(Event::OutOfSequence);
    }
    if !in_order || first {
        abandon(x);
    }
    x.responder_mut().psn = psn.get();
    let begun = x.responder().rx.kind != Message::NONE;
    if (begun || first) && unanswered(x, packet) {
        return;
    }
    // Drops it, with the rest of its message.
    abandon(x);
    x.responder_mut().psn = psn.add(1).get();
}

/// Aborts the message being received. The next message takes its receive (IBTA 9.9.3.1, class E).
fn abandon<X: Responses>(x: &mut X) {
    if x.responder().rx.kind == Message::SEND {
        x.abort_receive();
    }
    x.responder_mut().rx = Message::default();
}
