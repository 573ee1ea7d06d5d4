//! Extended reliable connection: RC whose requests name the SRQ they are for (IBTA annex A14).

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

/// Lets `then` see the QP with what requests for `srqn` use: SRQ, CQ and protection domain of the SRQ.
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

/// The QP's turn to send, for the request that came last.
pub(crate) fn run(w: &mut Work<'_, '_, '_>, then: impl FnOnce(&mut Work<'_, '_, '_>)) {
    lend(w, w.q.xrc_srqn, then);
}

/// A packet for the QP: a target takes requests, an initiator answers.
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    // First of all: a packet that is to be dropped must not choose the SRQ.
    if !check(w, packet) {
        return;
    }
    let target_qp = w.q.has(QpFlags::NO_SQ);
    if packet.headers.bth().opcode().is_request() != target_qp {
        return w.count(Counters::RxDroppedQp);
    }
    let srqn = packet.headers.xrceth().map_or(0, |eth| eth.srqn().0);
    if target_qp && packet.headers.bth().psn() == Psn::new(w.q.responder.psn) {
        // The packets of a message name one SRQ, whose buffer was taken with the first of them.
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
