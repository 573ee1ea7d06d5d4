//! Packets on InfiniBand: LRH and GRH instead of Ethernet, IP and UDP (IBTA 7.7, 8.3, 9.6.1).

use super::{
    packet::{Packet as Arrived, checked},
    step::{Frame, Payload, Step},
    work::QpStage,
};
use crate::{
    LinkLayer, identity,
    region::{Func, SlotPayload},
    state::{Counters, IbPort, Path},
    subnet,
};
use hwspec::{
    context::ServiceType,
    wire::{
        Grh, Headers, ICRC_SIZE, Icrc, IpPair, Packet, Route, VCRC_SIZE, lrh::is_multicast,
        mad::smp::MTU_4096, pad, write_route,
    },
};

/// The virtual lane of subnet management (IBTA 7.6.3).
const MANAGEMENT_LANE: u8 = 15;
/// Largest payload of a packet.
const MAX_PAYLOAD: u32 = 128 << MTU_4096;

impl QpStage<'_, '_, '_> {
    /// True if the link is InfiniBand.
    #[inline]
    pub(crate) fn is_infiniband(&self) -> bool {
        self.step.config.link_layer == LinkLayer::Infiniband
    }

    /// The P_Key of the QP on InfiniBand.
    #[cold]
    pub(super) fn port_pkey(&self) -> u16 {
        let pkeys = &self.func.function().ib.pkeys;
        pkeys.get(usize::from(self.q.pkey_index)).copied().unwrap_or(0)
    }

    /// True if the QP accepts packets with `pkey` on InfiniBand. QP1 accepts those of all partitions of the port (IBTA
    /// 9.6.1.4).
    #[cold]
    pub(super) fn takes_pkey(&mut self, pkey: u16) -> bool {
        let general = self.q.service == ServiceType::Qp1.raw();
        let port = &self.func.function().ib;
        let takes = match general {
            true => port.pkey_for(pkey).is_some(),
            false => IbPort::is_same_partition(self.port_pkey(), pkey),
        };
        if !takes {
            let violations = self.func.function_mut(|f| &mut f.ib.pkey_violations);
            *violations = violations.saturating_add(1);
        }
        takes
    }

    /// [`send_along`](Self::send_along) on InfiniBand.
    #[cold]
    pub(super) fn send_routed(
        &mut self,
        path: Option<&Path>,
        packet: &Packet,
        payload: Payload,
        traffic_class: u8,
    ) -> bool {
        let path = path.unwrap_or(&self.q.path);
        let f = self.func.function();
        let grh = match path.grh {
            0 => None,
            _ => {
                let Some(sgid) = f.ib.gid(path.sgid_index.into()) else { return false };
                let hop_limit = if path.hop_limit == 0 { 1 } else { path.hop_limit };
                Some(Grh { sgid, dgid: path.dgid, traffic_class, flow_label: path.flow_label, hop_limit })
            }
        };
        let management = self.q.service == ServiceType::Qp0.raw();
        let route = Route {
            vl: if management { MANAGEMENT_LANE } else { 0 },
            sl: path.sl,
            dlid: path.rlid,
            slid: identity::lid(self.step.config.node_id, self.func.fid()),
            grh,
        };
        if f.vport_state == 0 {
            // The link is down: packets are lost, as in a queue with a closed lane.
            return true;
        }
        let mut frame = Frame::new(payload);
        let Some(len) = write_route(&mut frame.headers, &route, packet, payload.len()) else { return false };
        frame.header_len = len as u16;
        self.step.send(frame);
        let bytes = (len + payload.len() + pad(payload.len()) + ICRC_SIZE) as u64;
        self.func.count(Counters::TxPackets, 1);
        self.func.count(Counters::TxBytes, bytes);
        if is_multicast(route.dlid) {
            self.func.count(Counters::IbTxMulticastPackets, 1);
            self.func.count(Counters::IbTxMulticastBytes, bytes);
        }
        true
    }

    /// [`is_from_peer`](Self::is_from_peer) on InfiniBand (IBTA 9.6.1.5): the packet comes from the peer's LID, and has a GRH
    /// if and only if the connection does, with the GIDs of the connection. The destination port was checked on
    /// [arrival](accept). There is no alternate path, so no other addresses are valid (IBTA 17.2.8).
    #[cold]
    pub(super) fn is_from_port(&self, packet: &Arrived<'_>) -> bool {
        let near = packet.headers.lrh().is_some_and(|lrh| lrh.slid() == self.q.path.rlid);
        let global = self.q.path.grh != 0;
        if !near || packet.headers.has_grh() != global {
            return false;
        }
        let (source, destination) = packet.headers.addresses().gids();
        !global
            || source == self.q.path.dgid
                && self.func.function().ib.is_gid(self.q.path.sgid_index.into(), &destination)
    }
}

/// `arrive::open_ethernet` for a frame that begins with an LRH. Detecting link-level corruption is the task of the switch: the VCRC is
/// not checked again.
#[cold]
pub(super) fn open<'p>(
    bytes: &'p [u8],
    payload: SlotPayload<'p>,
    sealed: bool,
) -> Result<Arrived<'p>, Counters> {
    let len = payload.size();
    let tail = if sealed { 0 } else { pad(len) + ICRC_SIZE + VCRC_SIZE };
    let headers = Headers::parse_route(bytes, bytes.len() + len + tail).map_err(|_| Counters::RxMalformed)?;
    let (SlotPayload::Bytes(body), true) = (payload, sealed) else {
        return Ok(Arrived { headers, data: payload, len: len as u32, packets: 1, padded: true });
    };
    checked(headers, Icrc::of_route(bytes), body)
}

/// True if a packet received by the port is for one of its queue pairs. Packets for the switch or for agents of the port are
/// handled here.
#[cold]
pub(super) fn accept(func: &mut Func<'_>, step: &mut Step<'_>, packet: &Arrived<'_>) -> bool {
    let Some(lrh) = packet.headers.lrh() else { return false };
    if packet.len > MAX_PAYLOAD {
        func.count(Counters::RxMalformed, 1);
        return false;
    }
    if subnet::arrive(func, step, packet) || func.function().vport_state == 0 || !func.function().may_dma() {
        return false;
    }
    if is_multicast(lrh.dlid()) {
        func.count(Counters::IbRxMulticastPackets, 1);
        func.count(Counters::IbRxMulticastBytes, packet.headers.frame_len() as u64);
        return true;
    }
    // IBTA 9.6.1.1: a global route that ends at this port.
    let dgid = match packet.headers.addresses() {
        IpPair::V6 { dst, .. } if packet.headers.has_grh() => Some(dst),
        _ => None,
    };
    let mine = lrh.dlid() == identity::lid(step.config.node_id, func.fid())
        && dgid.is_none_or(|dgid| dgid[0] == 0xff || func.function().ib.has_gid(&dgid));
    if !mine {
        func.count(Counters::RxDroppedQp, 1);
    }
    mine
}
