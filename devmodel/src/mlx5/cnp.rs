//! Congestion notification (annex A17.9.3): a marked packet is answered to its sender, paced per QP.

use super::{step::Payload, work::Work};
use crate::state::Counters;
use hwspec::wire::{BthOpcode, Packet};

/// Least time between two notifications of a QP, ps.
const PACE_PS: u64 = 50_000_000;
/// DSCP 48, as network control traffic.
const TRAFFIC_CLASS: u8 = 48 << 2;

/// Tells the peer that a packet of its QP met congestion.
#[cold]
pub(crate) fn notify(w: &mut Work<'_, '_, '_>) {
    if w.step.now < w.q.responder.cnp_after {
        return;
    }
    w.q.responder.cnp_after = w.step.now + PACE_PS;
    let mut bth = w.bth(BthOpcode::Cnp, 0);
    bth.set().becn(true);
    w.send_as(&Packet { bth, ..Packet::default() }, &Payload::Empty, TRAFFIC_CLASS);
    w.count(Counters::NpCnpSent);
}
