//! Extended reliable connection: RC with requests that name their target SRQ (IBTA annex A14).

use super::{
    received::{Packet, check},
    reliable, srq,
    work::Work,
};
use crate::{
    host::Party,
    state::{Counters, QpFlags},
    transport::Message,
};
use hwspec::{handle::Psn, wire::NakCode};

/// Runs `then` on the QP with the SRQ, CQ and protection domain for requests to `srqn`.
fn lend(w: &mut Work<'_, '_, '_>, srqn: u32, then: impl FnOnce(&mut Work<'_, '_, '_>)) {
    let q = &w.q;
    let own = (q.pd, q.srqn, q.cqn_rcv, q.user_index);
    if let Some(srq) = srq::named(w, srqn).filter(|_| w.q.has(QpFlags::NO_SQ)) {
        let party = Party(srq.head.party);
        if !w.step.host.reaches(party) {
            w.step.blocked = Some(party);
            return;
        }
        w.q.srqn = srqn;
        (w.q.pd, w.q.cqn_rcv, w.q.user_index) = (srq.pd, srq.cqn, srq.user_index);
    }
    then(w);
    (w.q.pd, w.q.srqn, w.q.cqn_rcv, w.q.user_index) = own;
}

/// Runs the QP's turn to send, for the latest request.
pub(crate) fn run(w: &mut Work<'_, '_, '_>, then: impl FnOnce(&mut Work<'_, '_, '_>)) {
    lend(w, w.q.xrc_srqn, then);
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
    lend(w, srqn, |w| reliable::accept_checked(w, packet));
}
