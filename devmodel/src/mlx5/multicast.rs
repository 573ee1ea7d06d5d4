//! Packets for several QPs of a function: those of a multicast group (IBTA 9.6.1.1, 10.5), or all QP1s.

use super::{
    datagram,
    lists::bytes,
    packet::Packet,
    step::{Frame, Payload, Step},
    turn::with,
};
use crate::{
    host::Party,
    identity,
    region::Func,
    state::{Counters, GroupRow, QpFlags, QpRow},
};
use hwspec::{
    handle::Qpn,
    wire::{Bth, Lrh},
};

/// The destination of a multicast packet: the QPs of a group.
pub(crate) const GROUP: u32 = u32::MAX;
/// The destination of a packet to QP1: all QP1s of a function with several.
pub(crate) const GENERAL: u32 = u32::MAX - 1;

/// Delivers a packet to all QPs of its group, or to all QP1s.
#[cold]
pub(crate) fn deliver(func: &mut Func<'_>, step: &mut Step<'_>, packet: &Packet<'_>, whom: u32) {
    let members = match whom {
        GENERAL => special_qps(func, 1),
        _ => datagram::members(func, packet.headers.addresses().gids().1),
    };
    if members.is_empty() {
        func.count(Counters::RxDroppedQp, 1);
    }
    for qp in members.iter().copied() {
        if blocks(func, step.config.node_id, packet, qp) {
            continue;
        }
        let party = func.row::<QpRow>(qp).map_or(0, |row| row.head.party);
        match members.len() == 1 || step.host.reaches(Party(party)) {
            true => {
                with(func, step, qp, |w| datagram::arrive(w, packet));
            }
            false => pass_on(func, step, packet, qp),
        }
    }
}

/// Passes on a packet to a QP of a program with memory that this runner cannot reach: the packet goes through the ring once
/// more, for that QP only, and waits there for its program.
fn pass_on(func: &mut Func<'_>, step: &mut Step<'_>, packet: &Packet<'_>, qp: u32) {
    let h = &packet.headers;
    let mut frame = Frame::new(Payload::Empty);
    frame.header_len = h.head().len() as u16;
    let Some(headers) = frame.headers.get_mut(..h.head().len()) else { return };
    headers.copy_from_slice(h.head());
    let mut bth = h.bth();
    bth.set().dest_qp(Qpn(func.number::<QpRow>(qp)));
    let at = h.bth_start();
    headers[at..at + Bth::SIZE].copy_from_slice(bth.as_bytes());
    match h.lrh() {
        Some(mut lrh) => {
            lrh.set().dlid(identity::lid(step.config.node_id, func.fid()));
            headers[..Lrh::SIZE].copy_from_slice(lrh.as_bytes());
        }
        None => headers[..6].copy_from_slice(&func.function().mac),
    }
    let mut data = vec![0; packet.len as usize];
    if bytes(step, &packet.data, &mut data).is_ok() {
        frame.payload = Payload::Staged(step.stage(&data), packet.len);
        step.send(frame);
    }
}

/// True if QP `qp` sent this packet itself and blocks its loopback. Other QPs of its function receive the packet, which Linux relies on
/// for IPoIB devices, all of which block their own.
fn blocks(func: &Func<'_>, node_id: u16, packet: &Packet<'_>, qp: u32) -> bool {
    let Some(row) = func.row::<QpRow>(qp).filter(|row| row.has(QpFlags::BLOCK_MULTICAST_LOOPBACK)) else {
        return false;
    };
    let h = &packet.headers;
    let from_here = match h.lrh() {
        Some(lrh) => lrh.slid() == identity::lid(node_id, func.fid()),
        None => h.ethernet().src() == func.function().mac,
    };
    from_here
        && h.deth().is_some_and(|deth| deth.src_qp().0 == datagram::source_qpn(row, func.number::<QpRow>(qp)))
}

/// Indices of all queue pairs that act as QP `number` of the port.
pub(crate) fn special_qps(func: &Func<'_>, number: usize) -> Vec<u32> {
    let first = func.function().special_qp.get(number).copied().unwrap_or(0);
    let next = |index: &u32| func.row::<QpRow>(*index)?.special_next.checked_sub(1);
    std::iter::successors(first.checked_sub(1), next).take(GroupRow::MAX_MEMBERS).collect()
}
