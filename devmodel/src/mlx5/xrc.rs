//! Extended reliable connection: RC with requests that name their target SRQ (IBTA annex A14).

use super::{
    received::{Packet, check},
    reliable, srq,
    work::{Receiver, Work},
};
use crate::{
    host::Party,
    state::{Counters, QpFlags},
    transport::Message,
};
use hwspec::{handle::Psn, wire::NakCode};

/// Makes the SRQ `srqn` the receiver of the QP's requests, with its CQ and protection domain. False if this runner cannot reach its
/// memory.
pub(crate) fn select(w: &mut Work<'_, '_, '_>, srqn: u32) -> bool {
    w.receiver = Receiver::of(&w.q);
    let Some(srq) = srq::named(w, srqn).filter(|_| w.q.has(QpFlags::NO_SQ)) else { return true };
    let party = Party(srq.head.party);
    if !w.step.host.reaches(party) {
        w.step.blocked = Some(party);
        return false;
    }
    w.receiver = Receiver { pd: srq.pd, srqn, cqn: srq.cqn, user_index: srq.user_index };
    true
}

/// Handles a packet for the QP: a target accepts requests, an initiator responses.
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
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
        if (astray || srq::named(w, srqn).is_none()) && !w.q.responder.is_refusing() {
            // A14: no such SRQ in the QP's domain.
            w.q.responder.refuse(NakCode::InvalidRequest, None);
            w.execute = true;
            return;
        }
    }
    if select(w, srqn) {
        reliable::accept_checked(w, packet);
    }
}
