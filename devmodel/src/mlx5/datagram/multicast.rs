//! Multicast: packets for all QPs of a group (IBTA 9.6.1.1, 10.5).

use super::{
    address::GENERAL,
    groups::{blocks, members},
    special_qps,
};
use crate::{
    host::Party,
    identity,
    mlx5::{
        lists::bytes,
        received::Packet,
        step::{Frame, Payload, Step},
        turn::with,
    },
    region::Func,
    state::{Counters, QpRow},
};
use hwspec::{
    handle::Qpn,
    wire::{Bth, IpPair, Lrh, ip::gid_of_v4},
};

/// Delivers a packet to all QPs of its group, or to all QP1s.
#[cold]
pub(crate) fn deliver(func: &mut Func<'_>, step: &mut Step<'_>, packet: &Packet<'_>, whom: u32) {
    let members = match whom {
        GENERAL => special_qps(func, 1),
        _ => group(func, packet),
    };
    if members.is_empty() {
        func.count(Counters::RxDroppedQp, 1);
    }
    for qp in members.iter().copied() {
        if blocks(func, packet, qp) {
            continue;
        }
        let party = func.row::<QpRow>(qp).map_or(0, |row| row.head.party);
        match members.len() == 1 || step.host.reaches(Party(party)) {
            true => {
                with(func, step, qp, |w| super::arrive(w, packet));
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
            lrh.set().dlid(identity::lid(func.fid()));
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

/// The members of the group that a packet is sent to.
fn group(func: &Func<'_>, packet: &Packet<'_>) -> Vec<u32> {
    let gid = match packet.headers.addresses() {
        IpPair::V4 { dst, .. } => gid_of_v4(dst),
        IpPair::V6 { dst, .. } => dst,
    };
    members(func, gid)
}
