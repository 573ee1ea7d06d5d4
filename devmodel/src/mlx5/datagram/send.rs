//! Sending datagrams: one packet for each work request, which is complete when the packet is sent (IBTA
//! 9.8.3.1).

use super::{
    address::{MULTICAST_QPN, TOO_LONG, source_qpn},
    groups,
};
use crate::{
    mlx5::{
        fetch::{self, Wqe},
        flow::Class,
        lists::{self, ListFault},
        step::Payload,
        work::{Failure, Work},
    },
    state::Path,
    transport::qkey_of,
};
use hwspec::{
    cqe::{CqeSyndrome, vendor_err},
    handle::{Psn, Qpn},
    wire::{BthOpcode, Deth, Packet},
    wqe::{AvSeg, WqeOpcode},
};

/// Sends the message of the work request at `index`.
pub(crate) fn next(w: &mut Work<'_, '_, '_>, index: u16) -> (u8, Result<Wqe, Failure>) {
    match fetch::datagram(w, index) {
        Ok((wqe, av)) => (wqe.ds, transmit(w, &wqe, &av).map(|()| wqe)),
        Err((ds, failure)) => (ds, Err(failure)),
    }
}

fn transmit(w: &mut Work<'_, '_, '_>, wqe: &Wqe, av: &AvSeg) -> Result<(), Failure> {
    if wqe.opcode == WqeOpcode::Nop {
        return Ok(());
    }
    // IBTA 9.8.3.1: a message is a single packet.
    if wqe.length > u32::from(w.q.mtu) {
        return Err(Failure::new(TOO_LONG, vendor_err::SGE_LENGTH));
    }
    let path = path_of(w, av)?;
    let payload = gather(w, wqe)?;
    let opcode = match wqe.opcode {
        WqeOpcode::SendImm => BthOpcode::UdSendOnlyImm,
        _ => BthOpcode::UdSendOnly,
    };
    let mut bth = w.bth(opcode, w.q.requester.psn);
    bth.set().se(wqe.solicited).dest_qp(av.destination_qp_dct());
    let mut deth = Deth::zeroed();
    deth.set().qkey(qkey_of(av.qkey(), w.q.qkey)).src_qp(Qpn(source_qpn(&w.q, w.qpn())));
    let packet = Packet { bth, deth, imm: wqe.imm, ..Packet::default() };
    if !send(w, &path, &packet, &payload) {
        return Err(fetch::refuse(CqeSyndrome::LocalQpOpErr));
    }
    if av.destination_qp_dct() == Qpn(MULTICAST_QPN) {
        groups::loop_back(w, &path, &packet, payload);
    }
    w.q.requester.psn = Psn::new(w.q.requester.psn).add(1).get();
    Ok(())
}

/// The path of a packet, from its address vector.
fn path_of(w: &Work<'_, '_, '_>, av: &AvSeg) -> Result<Path, Failure> {
    let ethernet = w.step.config.link_layer == crate::LinkLayer::Ethernet;
    let source = w.func.function().roce.get(usize::from(av.src_addr_index()));
    if ethernet && source.is_none_or(|address| address.valid == 0) {
        return Err(fetch::refuse(CqeSyndrome::LocalQpOpErr));
    }
    Ok(Path {
        sgid_index: av.src_addr_index(),
        hop_limit: av.hop_limit(),
        tclass: av.tclass(),
        grh: av.grh().into(),
        udp_sport: av.rlid_udp_sport(),
        dmac: av.rmac(),
        dgid: av.rgid_rip(),
        flow_label: av.flow_label(),
        rlid: av.rlid_udp_sport(),
        sl: av.sl_eth_prio(),
        path_bits: av.mlid(),
    })
}

/// Sends a packet on `path`, whose end is from now on the latest destination.
pub(super) fn send(w: &mut Work<'_, '_, '_>, path: &Path, packet: &Packet, payload: &Payload) -> bool {
    (w.q.path.dmac, w.q.path.rlid) = (path.dmac, path.rlid);
    w.send_along(Some(path), packet, payload, Class::of(path))
}

/// Payload of the message, by value: its buffer belongs to the program again once the request completes.
fn gather(w: &mut Work<'_, '_, '_>, wqe: &Wqe) -> Result<Payload, Failure> {
    let [start, end] = wqe.data.map(usize::from);
    let buffers = &mut *w.step.buffers;
    if wqe.inline {
        let at = buffers.staged.len() as u32;
        let bytes = buffers.wqe.get(start..end).ok_or(fetch::refuse(CqeSyndrome::LocalQpOpErr))?;
        buffers.staged.extend_from_slice(bytes);
        return Ok(Payload::Staged(at, wqe.length));
    }
    let mut pieces = std::mem::take(&mut buffers.pieces);
    let list = &w.step.buffers.wqe[start..end];
    let domain = w.domain();
    let found = lists::check(w.func, domain, list, lists::GATHER)
        .and_then(|()| lists::resolve(w.func, domain, list, 0, wqe.length, lists::GATHER, &mut pieces));
    let rid = w.func.rid();
    let payload = match found {
        Ok(()) => lists::by_value(w.step, rid, &pieces)
            .map_err(|_| Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY)),
        Err(fault) => Err(ListFault::failure(fault)),
    };
    w.step.buffers.pieces = pieces;
    payload
}
