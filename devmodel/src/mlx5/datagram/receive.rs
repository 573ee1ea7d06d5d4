//! Receiving datagrams (IBTA 9.8.3.2): datagrams that fit are delivered after the 40 bytes of the GRH, others are
//! dropped.

use super::address::TOO_LONG;
use crate::{
    Profile,
    host::Abort,
    mlx5::{
        completion, counter_of_dropped, event, flush,
        lists::{self, Domain},
        receive,
        received::Packet,
        settle,
        work::{Failure, Work},
    },
    region::SlotPayload,
    state::{Counters, QpFlags, SrqRow},
    transport::{Datagram, Receiver, check_datagram},
};
use hwspec::{
    context::{QpState, ServiceType},
    cqe::{Cqe64, CqeOpcode, CqeSyndrome, RoceL3Type, vendor_err},
    eqe::EventType,
    handle::Qpn,
    wire::{Deth, GRH_SIZE},
};

/// The reason why a datagram is not delivered.
enum Refusal {
    /// Silently dropped; the receive WQE is not consumed.
    Drop(Counters),
    /// The receive WQE completes with an error, and the QP goes to ERR.
    Fail(Failure),
}
use Refusal::{Drop, Fail};

/// Handles a packet for a datagram QP.
pub(crate) fn arrive(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let deth = match check(w, packet) {
        Ok(deth) => deth,
        Err(counter) => return w.count(counter),
    };
    let shared = match w.q.has(QpFlags::HAS_SRQ) {
        true => w.func.get::<SrqRow>(w.receiver.srqn).copied(),
        false => None,
    };
    let Some(index) = receive::take(w) else { return w.count(Counters::OutOfBuffer) };
    match deliver(w, packet, index) {
        Ok(()) => {
            receive::done(w);
            complete(w, packet, &deth, index);
        }
        Err(Drop(counter)) => {
            w.count(counter);
            if let (Some(before), Some(row)) = (shared, w.func.get_mut::<SrqRow>(w.receiver.srqn)) {
                *row = before;
            }
        }
        Err(Fail(failure)) => fail(w, index, failure),
    }
}

/// The DETH of an accepted packet, or the counter of one that is silently dropped.
fn check(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> Result<Deth, Counters> {
    let bth = packet.headers.bth();
    let deth = packet.headers.deth();
    let datagram = Datagram {
        opcode: bth.opcode(),
        qkey: deth.map(|deth| deth.qkey()),
        len: packet.len,
        padded: packet.padded,
    };
    let receiver = Receiver {
        ready: matches!(w.state(), QpState::Rtr | QpState::Rts | QpState::SqDrained | QpState::SqErr),
        manages: w.q.service == ServiceType::Qp0.raw(),
        qkey: w.q.qkey,
        mtu: w.q.mtu.into(),
    };
    check_datagram(&datagram, &receiver, || w.takes_partition(bth.pkey())).map_err(counter_of_dropped)?;
    deth.ok_or(Counters::RxDroppedQp)
}

/// Scatters GRH and message to the list of WQE `index`.
fn deliver(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, index: u16) -> Result<(), Refusal> {
    let Some(domain) = receive::load(w, index) else { return Err(protection()) };
    if lists::capacity(&w.step.buffers.receive) < u64::from(packet.len) + GRH_SIZE as u64 {
        return Err(match w.profile() {
            Profile::Cx5 => Fail(Failure::new(TOO_LONG, vendor_err::SGE_LENGTH)),
            // IBTA 9.9.3.1, class D.
            Profile::Ibta => Drop(Counters::RespLocalLengthError),
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
    w: &mut Work<'_, '_, '_>,
    domain: Domain,
    from: u32,
    len: u32,
    data: &SlotPayload<'_>,
) -> Result<(), Refusal> {
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    let list = &w.step.buffers.receive;
    let found = lists::resolve(w.func, domain, list, from, len, lists::SCATTER, &mut pieces);
    let rid = w.func.rid();
    let result = match found {
        Ok(()) => lists::place(w.step, data, rid, &pieces).map_err(|abort| match abort {
            Abort::Source | Abort::Gone => Drop(Counters::RxMalformed),
            Abort::Destination => protection(),
        }),
        Err(_) => Err(protection()),
    };
    w.step.buffers.pieces = pieces;
    result
}

fn complete(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, deth: &Deth, index: u16) {
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
    if !completion::push(w, w.receiver.cqn, cqe, bth.se()) {
        settle::unreported(w);
    }
}

/// Completes the receive WQE with an error (IBTA 9.9.3).
fn fail(w: &mut Work<'_, '_, '_>, index: u16, failure: Failure) {
    if failure.syndrome == CqeSyndrome::LocalLengthErr {
        w.count(Counters::RespLocalLengthError);
    }
    let cqe = completion::error(w, CqeOpcode::RespErr, failure, index, 0);
    completion::push(w, w.receiver.cqn, cqe, true);
    receive::done(w);
    let (uid, qpn) = (w.q.head.uid, w.qpn());
    event::queue(w.func, uid, EventType::WqCatasError, qpn);
    flush::enter_error(w);
}
