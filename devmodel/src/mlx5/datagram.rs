//! Datagrams: UD queue pairs and the port's special ones, QP0 and QP1 (IBTA 9.8.3, 13.5.1).
//!
//! A work request is one packet, and complete when the packet is sent. A datagram that fits is delivered after the 40 bytes of the GRH,
//! another is dropped.

use super::{
    acks, completion, counter_of_dropped,
    fetch::{self, Wqe},
    flush,
    header_cache::TrafficClass,
    lists,
    packet::Packet,
    receive, requester,
    step::Payload,
    work::{Failure, QpStage},
};
use crate::{
    Conformance, LinkLayer,
    host::Abort,
    identity,
    region::{Func, SlotPayload},
    state::{Counters, GroupRow, Path, QpRow},
    translate::Domain,
    transport::{Datagram, Receiver, check_datagram, qkey_of},
};
use hwspec::{
    context::ServiceType,
    cqe::{Cqe64, CqeOpcode, CqeSyndrome, RoceL3Type, vendor_err},
    eqe::EventType,
    handle::{Psn, Qpn},
    wire::{self, BthOpcode, Deth, GRH_SIZE, lrh::MULTICAST_QPN},
    wqe::{AvSeg, WqeOpcode},
};

/// The error of a message that exceeds a packet or a receive buffer.
const TOO_LONG: CqeSyndrome = CqeSyndrome::LocalLengthErr;

/// The QP number of `q` as seen by a peer; its own is `number`. Special QPs have the numbers 0 and 1 in any row.
pub(super) fn source_qpn(q: &QpRow, number: u32) -> u32 {
    match ServiceType::from_raw(q.service) {
        ServiceType::Qp0 => 0,
        ServiceType::Qp1 => 1,
        _ if q.deth_sqpn != 0 => q.deth_sqpn & 0xff_ffff,
        _ => number,
    }
}

/// Sends the message of the work request at `index`.
pub(crate) fn next(w: &mut QpStage<'_, '_, '_>, index: u16) -> (u8, Result<Wqe, Failure>) {
    match fetch::datagram(w, index) {
        Ok((wqe, av)) => (wqe.ds, transmit(w, &wqe, &av).map(|()| wqe)),
        Err((ds, failure)) => (ds, Err(failure)),
    }
}

fn transmit(w: &mut QpStage<'_, '_, '_>, wqe: &Wqe, av: &AvSeg) -> Result<(), Failure> {
    if wqe.opcode == WqeOpcode::Nop {
        return Ok(());
    }
    // IBTA 9.8.3.1: a message is a single packet.
    if wqe.length > u32::from(w.q.mtu) {
        return Err(Failure::new(TOO_LONG, vendor_err::SGE_LENGTH));
    }
    let path = path_of(w, av)?;
    if let Some(failure) = (!wqe.inline).then(|| requester::check_list(w, wqe)).flatten() {
        return Err(failure);
    }
    let payload = requester::gather(w, wqe, 0, wqe.length)?;
    let opcode = match wqe.opcode {
        WqeOpcode::SendImm => BthOpcode::UdSendOnlyImm,
        _ => BthOpcode::UdSendOnly,
    };
    let mut bth = w.bth(opcode, w.q.requester.psn);
    bth.set().se(wqe.solicited).dest_qp(av.destination_qp_dct());
    let deth = Deth::with(|s| s.qkey(qkey_of(av.qkey(), w.q.qkey)).src_qp(Qpn(source_qpn(&w.q, w.qpn()))));
    let packet = wire::Packet { bth, deth, imm: wqe.imm, ..wire::Packet::default() };
    if !send(w, &path, &packet, &payload) {
        return Err(fetch::refuse(CqeSyndrome::LocalQpOpErr));
    }
    if av.destination_qp_dct() == Qpn(MULTICAST_QPN) {
        loop_back(w, &path, &packet, payload);
    }
    w.q.requester.psn = Psn::new(w.q.requester.psn).add(1).get();
    Ok(())
}

/// The path of a packet, from its address vector.
fn path_of(w: &QpStage<'_, '_, '_>, av: &AvSeg) -> Result<Path, Failure> {
    let ethernet = w.step.config.link_layer == LinkLayer::Ethernet;
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

/// Sends a packet on `path` and records its end as the latest destination.
pub(super) fn send(
    w: &mut QpStage<'_, '_, '_>,
    path: &Path,
    packet: &wire::Packet,
    payload: &Payload,
) -> bool {
    (w.q.path.dmac, w.q.path.rlid) = (path.dmac, path.rlid);
    w.send_along(Some(path), packet, payload, TrafficClass::of(path))
}

/// Delivers a multicast packet to members on the sending function: the wire does not loop it back, so the port does.
#[cold]
fn loop_back(w: &mut QpStage<'_, '_, '_>, path: &Path, packet: &wire::Packet, payload: Payload) {
    if members(w.func, path.dgid).is_empty() {
        return;
    }
    let here = match w.step.config.link_layer {
        LinkLayer::Ethernet => Path { dmac: w.func.function().mac, ..*path },
        LinkLayer::Infiniband => Path { rlid: identity::lid(w.step.config.node_id, w.func.fid()), ..*path },
    };
    send(w, &here, packet, &payload);
}

/// QPs of the group with this GID, in the order of their joining.
pub(super) fn members(func: &Func<'_>, gid: [u8; 16]) -> Vec<u32> {
    if func.used::<GroupRow>() == 0 {
        return Vec::new();
    }
    func.objects::<GroupRow>().filter(|(_, row)| row.gid == gid).map(|(_, row)| row.qp).collect()
}

/// The reason why a datagram is not delivered.
enum Refusal {
    /// Silently dropped; the receive WQE is not consumed.
    Drop(Counters),
    /// The receive WQE completes with an error, and the QP goes to ERR.
    Fail(Failure),
}

use Refusal::{Drop, Fail};

/// Handles a packet for a datagram QP.
pub(crate) fn arrive(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) {
    let deth = match check(w, packet) {
        Ok(deth) => deth,
        Err(counter) => return w.count(counter),
    };
    let shared = receive::shared(w);
    let Some(index) = receive::take(w) else { return w.count(Counters::OutOfBuffer) };
    match deliver(w, packet, index) {
        Ok(()) => {
            receive::done(w);
            complete(w, packet, &deth, index);
        }
        Err(Drop(counter)) => {
            w.count(counter);
            receive::give_back(w, shared);
        }
        Err(Fail(failure)) => fail(w, index, failure),
    }
}

/// The DETH of an accepted packet, or the counter of one that is silently dropped.
fn check(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>) -> Result<Deth, Counters> {
    let bth = packet.headers.bth();
    let deth = packet.headers.deth();
    let datagram = Datagram {
        opcode: bth.opcode(),
        qkey: deth.map(|deth| deth.qkey()),
        len: packet.len,
        padded: packet.padded,
    };
    let receiver = Receiver {
        ready: w.receives(),
        manages: w.is(ServiceType::Qp0),
        qkey: w.q.qkey,
        mtu: w.q.mtu.into(),
    };
    check_datagram(&datagram, &receiver, || w.takes_partition(bth.pkey())).map_err(counter_of_dropped)?;
    deth.ok_or(Counters::RxDroppedQp)
}

/// Scatters GRH and message to the list of WQE `index`.
fn deliver(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>, index: u16) -> Result<(), Refusal> {
    let Some(domain) = receive::load(w, index) else { return Err(protection()) };
    if lists::capacity(&w.step.buffers.receive) < u64::from(packet.len) + GRH_SIZE as u64 {
        return Err(match w.profile() {
            Conformance::Cx5 => Fail(Failure::new(TOO_LONG, vendor_err::SGE_LENGTH)),
            // IBTA 9.9.3.1, class D.
            Conformance::Ibta => Drop(Counters::RespLocalLengthError),
        });
    }
    let grh = packet.headers.grh();
    if packet.headers.has_grh() {
        place(w, domain, 0, GRH_SIZE as u32, &SlotPayload::Bytes(&grh))?;
    }
    place(w, domain, GRH_SIZE as u32, packet.len, &packet.data)
}

fn protection() -> Refusal {
    Fail(Failure::new(CqeSyndrome::LocalProtErr, vendor_err::LKEY))
}

/// Writes `len` bytes at byte `from` of the current scatter list.
fn place(
    w: &mut QpStage<'_, '_, '_>,
    domain: Domain,
    from: u32,
    len: u32,
    data: &SlotPayload<'_>,
) -> Result<(), Refusal> {
    w.resolve_receive(domain, from, len).map_err(|_| protection())?;
    let rid = w.func.rid();
    lists::place(w.step, data, rid).map_err(|abort| match abort {
        Abort::Source | Abort::Gone => Drop(Counters::RxMalformed),
        Abort::Destination => protection(),
    })
}

fn complete(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>, deth: &Deth, index: u16) {
    let h = &packet.headers;
    let bth = h.bth();
    let (opcode, imm) = match h.imm() {
        Some(imm) => (CqeOpcode::RespSendImm, imm),
        // Without immediate data, this field holds the P_Key of the packet.
        None => (CqeOpcode::RespSend, bth.pkey().into()),
    };
    let mut cqe = Cqe64::zeroed();
    cqe.set()
        .srqn_uidx(completion::user_index(w, true))
        .imm_inval_pkey(imm)
        .byte_cnt(packet.len + GRH_SIZE as u32)
        .timestamp(completion::timestamp(w.step.now))
        .rqpn(Qpn(deth.src_qp().0))
        .grh(h.has_grh().into())
        .qpn(Qpn(w.qpn()))
        .wqe_counter(index)
        .opcode(opcode)
        .se(bth.se());
    match h.lrh() {
        Some(lrh) => {
            // A port has only one LID, so there are no path bits.
            cqe.set().slid(lrh.slid()).sl(lrh.sl());
        }
        None => {
            let l3 = if h.is_v6() { RoceL3Type::Ipv6 } else { RoceL3Type::Ipv4 };
            cqe.set().sl(l3.raw());
        }
    }
    if !completion::append(w.func, w.step, w.receiver.cqn, cqe, bth.se()) {
        acks::unreported(w);
    }
}

/// Completes the receive WQE with an error (IBTA 9.9.3).
fn fail(w: &mut QpStage<'_, '_, '_>, index: u16, failure: Failure) {
    if failure.syndrome == CqeSyndrome::LocalLengthErr {
        w.count(Counters::RespLocalLengthError);
    }
    completion::fail(w, CqeOpcode::RespErr, failure, index, 0);
    receive::done(w);
    w.raise(EventType::WqCatasError);
    flush::enter_error(w);
}
