//! Extended reliable connection: RC whose requests name the SRQ they are for (IBTA annex A14).

use super::{
    arrive::{self, Packet},
    responder,
    work::Work,
};
use crate::state::{Counters, QpFlags, SrqRow};
use hwspec::{handle::Psn, wire::NakCode};

/// `SrqRow::kind` of an XRC SRQ.
const XRC_SRQ: u32 = 1;

/// The SRQ that the request at hand names, if it is of the QP's domain.
fn target(w: &Work<'_, '_, '_>) -> Option<SrqRow> {
    let srq = w.func.get::<SrqRow>(w.q.xrc_srqn)?;
    (srq.kind == XRC_SRQ && srq.xrcd == w.q.xrcd).then_some(*srq)
}

/// Lets `then` see the QP with what its request is about to use: SRQ, CQ and protection domain of the SRQ.
pub(crate) fn lend(w: &mut Work<'_, '_, '_>, then: impl FnOnce(&mut Work<'_, '_, '_>)) {
    let q = &w.q;
    let own = (q.pd, q.srqn, q.cqn_rcv, q.user_index);
    if let Some(srq) = target(w).filter(|_| w.q.has(QpFlags::NO_SQ)) {
        w.q.srqn = w.q.xrc_srqn;
        (w.q.pd, w.q.cqn_rcv, w.q.user_index) = (srq.pd, srq.cqn, srq.user_index);
    }
    then(w);
    (w.q.pd, w.q.srqn, w.q.cqn_rcv, w.q.user_index) = own;
}

/// A packet for the QP: a target takes requests, an initiator answers.
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let target_qp = w.q.has(QpFlags::NO_SQ);
    if packet.headers.bth().opcode().is_request() != target_qp {
        return w.count(Counters::RxDroppedQp);
    }
    if let Some(eth) = packet.headers.xrceth() {
        w.q.xrc_srqn = eth.srqn().0;
        let expected = packet.headers.bth().psn() == Psn::new(w.q.rx_psn);
        if target(w).is_none() && expected && arrive::check(w, packet) && !responder::fatal_owed(w) {
            // A14: no such SRQ in the QP's domain.
            responder::refuse(w, NakCode::InvalidRequest, None);
            w.execute = true;
            return;
        }
    }
    lend(w, |w| arrive::connected(w, packet));
}
