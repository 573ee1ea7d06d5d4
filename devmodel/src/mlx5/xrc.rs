//! Extended reliable connection: RC whose requests name the SRQ they are for (IBTA annex A14).

use super::{
    arrive::{self, Packet},
    work::Work,
};
use crate::{
    host::Party,
    state::{Counters, QpFlags, SrqRow},
    transport::Message,
};
use hwspec::{context::ServiceType, handle::Psn, wire::NakCode};

/// `SrqRow::kind` of an XRC SRQ.
const XRC_SRQ: u32 = 1;

/// The SRQ `srqn`, if requests of the QP may name it: it is of the QP's domain.
fn target(w: &Work<'_, '_, '_>, srqn: u32) -> Option<SrqRow> {
    let srq = w.func.get::<SrqRow>(srqn)?;
    (srq.kind == XRC_SRQ && srq.xrcd == w.q.xrcd).then_some(*srq)
}

/// The protection domain of requests that name `srqn`.
#[cold]
pub(crate) fn domain(w: &Work<'_, '_, '_>, srqn: u32) -> u32 {
    target(w, srqn).map_or(w.q.pd, |srq| srq.pd)
}

/// Whether the QP is the target side of XRC.
#[cold]
pub(crate) fn is_target(w: &Work<'_, '_, '_>) -> bool {
    w.q.service == ServiceType::Xrc.raw() && w.q.has(QpFlags::NO_SQ)
}

/// Lets `then` see the QP with what requests for `srqn` use: SRQ, CQ and protection domain of the SRQ.
fn lend(w: &mut Work<'_, '_, '_>, srqn: u32, then: impl FnOnce(&mut Work<'_, '_, '_>)) {
    let q = &w.q;
    let own = (q.pd, q.srqn, q.cqn_rcv, q.user_index);
    if let Some(srq) = target(w, srqn).filter(|_| w.q.has(QpFlags::NO_SQ)) {
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
    if !arrive::check(w, packet) {
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
        if (astray || target(w, srqn).is_none()) && !w.q.responder.is_refusing() {
            // A14: no such SRQ in the QP's domain.
            w.q.responder.refuse(NakCode::InvalidRequest, None);
            w.execute = true;
            return;
        }
    }
    lend(w, srqn, |w| arrive::checked_in(w, packet));
}
