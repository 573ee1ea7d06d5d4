//! Congestion notification packets (annex A17.9.3).

use super::{step::Payload, work::Work};
use crate::state::Counters;
use hwspec::wire::{BthOpcode, Packet};

/// DSCP 48, as network control traffic.
const TRAFFIC_CLASS: u8 = 48 << 2;

/// Tells the peer that a packet of its QP met congestion.
#[cold]
pub(crate) fn notify(w: &mut Work<'_, '_, '_>) {
    if !w.q.responder.notifier.on_mark(w.step.now) {
        return;
    }
    let mut bth = w.bth(BthOpcode::Cnp, 0);
    bth.set().becn(true);
    w.send_as(&Packet { bth, ..Packet::default() }, &Payload::Empty, TRAFFIC_CLASS);
    w.count(Counters::NpCnpSent);
}
