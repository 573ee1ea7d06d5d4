//! Received packets, and packets to send: construction of their headers from a QP's path (IBTA 9.2, annex A17).

use super::{
    header_cache::{HeaderTemplate, TEMPLATES, TrafficClass},
    step::Payload,
    work::QpStage,
};
use crate::{
    region::SlotPayload,
    state::{Counters, Path, RoceAddress},
};
use hwspec::{
    handle::Psn,
    wire::{self, Aeth, Bth, BthOpcode, Headers, ICRC_SIZE, Icrc, Syndrome, bth::Transport, ip::is_v4, pad},
};

/// The port's only P_Key: full member of the default partition.
pub(crate) const PKEY: u16 = 0xffff;
/// True if P_Key `pkey` belongs to the same partition. Two limited members could not communicate (IBTA 10.9.3), but this port is
/// a full member.
fn is_same_partition(pkey: u16) -> bool {
    pkey & 0x7fff == PKEY & 0x7fff
}

/// `mig_req` in the first word of a BTH.
const MIG_REQ: u32 = 1 << 22;

/// A received packet.
pub(crate) struct Packet<'p> {
    pub headers: Headers<'p>,
    /// Payload, pad excluded.
    pub data: SlotPayload<'p>,
    pub len: u32,
    /// Number of packets of a train, with consecutive PSNs from that of the headers; otherwise 1.
    pub packets: u32,
    /// True if payload and pad together are whole words, as they must be (IBTA 9.2.4).
    pub padded: bool,
}

/// Builds a packet received with pad and ICRC, after checking the ICRC.
pub(super) fn checked<'p>(
    headers: Headers<'p>,
    mut sum: Icrc,
    body: &'p [u8],
) -> Result<Packet<'p>, Counters> {
    let padded = headers.padded_range().len();
    let (data, icrc) = (body.get(..padded), body.get(padded..padded + ICRC_SIZE));
    let (Some(data), Some(icrc)) = (data, icrc) else { return Err(Counters::RxMalformed) };
    sum.update(data);
    if sum.finish() != icrc {
        return Err(Counters::RxIcrcErrors);
    }
    let pad = usize::from(headers.bth().pad_count());
    let whole = data.len() % 4 == 0 && pad <= data.len();
    let data = &data[..data.len().saturating_sub(pad)];
    Ok(Packet { headers, data: SlotPayload::Bytes(data), len: data.len() as u32, packets: 1, padded: whole })
}

impl QpStage<'_, '_, '_> {
    /// Builds a BTH to the peer. MigReq is 1: no path migration (IBTA 17.2.8).
    #[inline]
    pub(crate) fn bth(&self, opcode: BthOpcode, psn: u32) -> Bth {
        self.bth_with(opcode, psn, false, false)
    }

    /// Like [`bth`](Self::bth), with the solicited event and AckReq bits.
    #[inline(always)]
    pub(crate) fn bth_with(&self, opcode: BthOpcode, psn: u32, ack_req: bool, se: bool) -> Bth {
        let transport = match opcode.raw() >> 5 == Transport::Rc.raw() {
            true => self.q.transport().raw() << 5,
            false => 0,
        };
        let pkey = if self.is_infiniband() { self.port_pkey() } else { PKEY };
        let opcode = u32::from(opcode.raw() | transport);
        let first = opcode << 24 | u32::from(se) << 23 | MIG_REQ | u32::from(pkey);
        let psn = u32::from(ack_req) << 31 | Psn::new(psn).get();
        Bth::from_words(first, u64::from(self.q.remote_qpn & 0xff_ffff) << 32 | u64::from(psn))
    }

    /// True if the QP accepts packets with P_Key `pkey`.
    #[inline]
    pub(crate) fn takes_partition(&mut self, pkey: u16) -> bool {
        if self.is_infiniband() { self.takes_pkey(pkey) } else { is_same_partition(pkey) }
    }

    /// True if a packet for this connected QP came over its connection (IBTA 9.6.1.5; annex A17: the IP header is the GRH).
    ///
    /// On RoCE its source must be the GID that the QP is connected to, and its destination the QP's own GID, in the VLAN of that
    /// GID. Both are compared with the current path and address table, because a program may have several GIDs and the sending
    /// function is known by its number only. MAC and UDP source port are not checked: routers change the former, and senders
    /// choose the latter (Linux rxe and mlx5 ignore them as well).
    #[inline(always)]
    pub(crate) fn is_from_peer(&self, packet: &Packet<'_>) -> bool {
        let own = self.func.function().roce.get(usize::from(self.q.path.sgid_index));
        match (packet.headers.plain_v4(), own) {
            (Some((source, destination)), Some(own)) if own.vlan == [0; 2] => {
                is_v4(&self.q.path.dgid, source) && is_v4(&own.gid, destination)
            }
            _ => self.is_from_peer_otherwise(packet, own),
        }
    }

    /// [`is_from_peer`](Self::is_from_peer) for packets other than plain IPv4.
    #[cold]
    fn is_from_peer_otherwise(&self, packet: &Packet<'_>, own: Option<&RoceAddress>) -> bool {
        if self.is_infiniband() {
            return self.is_from_port(packet);
        }
        let (source, destination) = packet.headers.addresses().gids();
        own.is_some_and(|own| {
            // An address in VLAN 0 is in no VLAN: its packets are tagged only for their priority.
            let vlan = own.vlan().filter(|vlan| *vlan != 0);
            source == self.q.path.dgid && destination == own.gid && packet.headers.vlan_id() == vlan
        })
    }

    /// Sends a packet to the peer. False if the QP has no source address.
    #[inline]
    pub(crate) fn send(&mut self, packet: &wire::Packet, payload: &Payload) -> bool {
        self.send_along(None, packet, payload, TrafficClass::of(&self.q.path))
    }

    /// Sends a packet on `path`, or to the peer if that is `None`, with the given traffic class.
    pub(crate) fn send_along(
        &mut self,
        path: Option<&Path>,
        packet: &wire::Packet,
        payload: &Payload,
        class: TrafficClass,
    ) -> bool {
        if self.is_infiniband() {
            return self.send_routed(path, packet, *payload, class.traffic_class);
        }
        let path = path.unwrap_or(&self.q.path);
        let f = self.func.function();
        let Some(source) = f.roce.get(path.sgid_index as usize) else { return false };
        // Annex A17: any port from 0xc000 up, constant for all packets of a flow.
        let src_port = if path.udp_sport == 0 { 0xc000 | self.qp as u16 & 0x3fff } else { path.udp_sport };
        let bytes = &mut self.step.buffers;
        let place = &mut bytes.templates[(self.qp as usize + usize::from(self.func.fid())) % TEMPLATES];
        let template = match place {
            Some(template) if template.is(path, source, f.mac, src_port, class) => template,
            _ => place.insert(HeaderTemplate::new(path, source, f.mac, src_port, class)),
        };
        // Built in place, because a frame is large.
        let frame = bytes.out.room();
        let len = payload.len();
        let Some(written) = template.head.write(&mut frame.headers, packet, len) else { return false };
        (frame.header_len, frame.packets) = (written as u16, 1);
        // Copies only the parts in use: a copy of the whole would stall until all its parts have been stored.
        match *payload {
            Payload::Empty => frame.payload = Payload::Empty,
            Payload::Staged(at, len) => frame.payload = Payload::Staged(at, len),
            Payload::Pieces(..) => frame.refer(payload),
        }
        bytes.out.add();
        let bytes = written + len + pad(len) + ICRC_SIZE;
        self.func.count(Counters::TxPackets, 1);
        self.func.count(Counters::TxBytes, bytes as u64);
        true
    }

    /// Sends a packet or a train that differs from the packet sent last, a full MIDDLE of the same message, only in PSN, AckReq
    /// and payload.
    #[inline]
    pub(crate) fn send_alike(&mut self, psn: Psn, ask: bool, packets: u16, payload: Payload) {
        let Some(mut frame) = self.step.buffers.out.last().copied() else { return };
        let end = usize::from(frame.header_len);
        let word = u32::from(ask) << 31 | psn.get();
        // The BTH is the last header of a MIDDLE, and ends with the PSN.
        frame.headers[end - 4..end].copy_from_slice(&word.to_be_bytes());
        (frame.packets, frame.payload) = (packets, payload);
        let packets = u64::from(packets);
        let bytes = packets * (end + ICRC_SIZE) as u64 + payload.len() as u64;
        self.step.buffers.out.push(frame);
        self.func.count(Counters::TxPackets, packets);
        self.func.count(Counters::TxBytes, bytes);
    }

    /// Sends an acknowledge packet with `psn` (IBTA 9.7.5.1).
    pub(crate) fn send_ack(&mut self, psn: u32, syndrome: Syndrome) {
        let aeth = Aeth::with(|s| s.syndrome(syndrome).msn(Psn::new(self.q.responder.msn)));
        let packet = wire::Packet { bth: self.bth(BthOpcode::RcAck, psn), aeth, ..wire::Packet::default() };
        self.send(&packet, &Payload::Empty);
    }
}
