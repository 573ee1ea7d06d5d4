//! The responder: requests in the order of their PSNs (IBTA 9.7.4).
//!
//! Checks come in the order of the specification: PSN, opcode sequence, rights of the QP, lengths, resources, keys. What
//! is found wrong is answered with a NAK behind all answers still owed; the QP goes to ERR when it is sent.

use super::{
    arrive::Packet,
    completion, duplicate, lists,
    receive::{self, SEND, WRITE},
    step::Buffers,
    work::Work,
};
use crate::{
    Profile,
    region::{Effect, SlotPayload},
    state::{Counters, QpFlags, ReadResource, RxMessage, SrqRow},
    translate::{self, Fault, access},
};
use hwspec::{
    cqe::{CqeFormat, CqeOpcode, CqeSyndrome, INLINE_32, vendor_err},
    eqe::EventType,
    handle::{Psn, Qpn},
    layout::Bits,
    wire::{BthOpcode, NakCode, Operation, Syndrome},
};

/// AETH syndrome bytes.
pub(crate) const NAK: u8 = 0x60;
const RNR: u8 = 0x20;
/// Largest message (IBTA 9.7.4.1.6).
const MAX_MESSAGE: u32 = 1 << 31;

/// Why a request is refused.
#[derive(Clone, Copy)]
enum Refusal {
    /// Receiver not ready: try again later.
    NotReady,
    /// A NAK that ends the connection, and what the receive WQE in use completes with.
    Fatal(NakCode, Option<CqeSyndrome>),
    /// The packet counts as lost.
    Lost,
}
use Refusal::{Fatal, Lost, NotReady};
const INVALID: Refusal = Fatal(NakCode::InvalidRequest, None);
const ACCESS: Refusal = Fatal(NakCode::RemoteAccess, None);

/// A request packet.
pub(crate) fn request(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    if fatal_owed(w) {
        return;
    }
    let psn = packet.headers.bth().psn();
    let ahead = psn.ahead_of(Psn::new(w.q.rx_psn));
    if ahead > 0 {
        return out_of_sequence(w);
    }
    if ahead < 0 {
        return duplicate::answer(w, packet);
    }
    if w.q.has(QpFlags::HAS_SRQ) {
        return request_of_shared(w, packet);
    }
    let before = (w.q.rx, w.q.flags);
    w.q.set(QpFlags::NAK_SENT | QpFlags::RNR_SENT, false);
    if let Err(refusal) = execute(w, packet) {
        refused(w, refusal, &before);
    }
}

/// [`request`] that is the next, to a QP whose receive WQEs are of a shared queue.
#[inline(never)]
fn request_of_shared(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) {
    let before = (w.q.rx, w.q.flags);
    w.q.set(QpFlags::NAK_SENT | QpFlags::RNR_SENT, false);
    let shared = w.func.get::<SrqRow>(w.q.srqn).copied();
    let Err(refusal) = execute(w, packet) else { return };
    // A WQE taken for a packet that does not count, or for an immediate that is not delivered, was not used.
    let unused = matches!(refusal, Lost) || w.q.rx.kind != SEND;
    if let Some(before) = shared.filter(|_| unused) {
        if let Some(row) = w.func.get_mut::<SrqRow>(w.q.srqn) {
            *row = before;
        }
    }
    refused(w, refusal, &before);
}

/// A request was not executed; `before` is what it found: the message under way and the flags of its QP.
#[cold]
fn refused(w: &mut Work<'_, '_, '_>, refusal: Refusal, before: &(RxMessage, u32)) {
    match refusal {
        // As if it had never come; what else the row holds of it nothing depends on.
        Lost => (w.q.rx, w.q.flags) = *before,
        NotReady => {
            w.count(Counters::OutOfBuffer);
            w.q.set(QpFlags::RNR_SENT, true);
            let psn = w.q.rx_psn;
            owe(w, RNR | w.q.min_rnr_nak & 0x1f, psn);
        }
        Fatal(code, status) => refuse(w, code, status),
    }
}

/// A request of an unreliable connection, in sequence. False if it is dropped.
#[cold]
pub(crate) fn unanswered(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> bool {
    let result = execute(w, packet);
    w.q.set(QpFlags::ACK_OWED, false);
    match result {
        Ok(()) => true,
        Err(NotReady) => {
            w.count(Counters::OutOfBuffer);
            false
        }
        Err(Fatal(code, Some(status))) => {
            refuse(w, code, Some(status));
            w.q.set(QpFlags::ACK_OWED, false);
            super::responses::fail(w);
            true
        }
        Err(_) => false,
    }
}

/// A NAK that ends the connection waits to be sent; nothing behind it counts.
pub(crate) fn fatal_owed(w: &Work<'_, '_, '_>) -> bool {
    w.q.has(QpFlags::ACK_OWED) && w.q.ack_syndrome > NAK
}

/// Owes the requester an answer at `psn`.
pub(crate) fn owe(w: &mut Work<'_, '_, '_>, syndrome: u8, psn: u32) {
    w.q.set(QpFlags::ACK_OWED, true);
    w.q.ack_syndrome = syndrome;
    w.q.rx_ack_psn = psn;
}

/// An acknowledgement of all before the PSN expected, unless something stronger is owed there.
pub(crate) fn owe_ack(w: &mut Work<'_, '_, '_>) {
    let psn = Psn::new(w.q.rx_psn).add(0xff_ffff).get();
    owe(w, Syndrome::ACK.into_bits() as u8, psn);
}

/// IBTA 9.7.5.1.2: one NAK for a gap, then silence until the PSN expected arrives. Behind an RNR NAK all is dropped.
#[cold]
fn out_of_sequence(w: &mut Work<'_, '_, '_>) {
    w.count(Counters::OutOfSequence);
    if w.q.has(QpFlags::NAK_SENT) || w.q.has(QpFlags::RNR_SENT) {
        return;
    }
    w.q.set(QpFlags::NAK_SENT, true);
    let psn = w.q.rx_psn;
    owe(w, NAK, psn);
}

#[cold]
pub(crate) fn refuse(w: &mut Work<'_, '_, '_>, code: NakCode, status: Option<CqeSyndrome>) {
    let psn = w.q.rx_psn;
    let event = match code {
        NakCode::InvalidRequest => EventType::WqInvalReqError,
        NakCode::RemoteAccess => EventType::WqAccessError,
        _ => EventType::WqCatasError,
    };
    w.q.rx_status = status.map_or(0, CqeSyndrome::raw);
    w.q.rx_vendor = match status {
        Some(CqeSyndrome::LocalProtErr) => vendor_err::LKEY,
        Some(_) => vendor_err::SGE_LENGTH,
        None => 0,
    };
    w.q.rx_event = if status.is_some() { 0 } else { event.raw() };
    owe(w, NAK | code.raw(), psn);
}

/// The packet with the PSN expected.
fn execute(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> Result<(), Refusal> {
    let opcode = packet.headers.bth().opcode();
    // IBTA 9.7.4.1.2: reserved opcodes, and the sequence of FIRST, MIDDLE, LAST.
    let operation = opcode.operation().ok_or(INVALID)?;
    let expected = match operation {
        Operation::Send if !opcode.is_first() => SEND,
        Operation::Write if !opcode.is_first() => WRITE,
        _ => 0,
    };
    if w.q.rx.kind != expected {
        return Err(INVALID);
    }
    if !packet.padded {
        return Err(INVALID);
    }
    let done = match operation {
        Operation::Send => send(w, packet, opcode).map(|()| true),
        _ => remote(w, packet, operation),
    };
    if !done? {
        return Ok(());
    }
    w.q.rx_psn = Psn::new(w.q.rx_psn).add(1).get();
    if packet.headers.bth().ack_req() {
        owe_ack(w);
    } else if w.q.has(QpFlags::ACK_OWED) && w.q.ack_syndrome >= RNR {
        // The gap is closed.
        w.q.set(QpFlags::ACK_OWED, false);
    }
    Ok(())
}

/// An operation on our memory that the QP must allow. False if it is answered later, with what it asks for.
#[inline(never)]
fn remote(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, operation: Operation) -> Result<bool, Refusal> {
    let right = match operation {
        Operation::Write => QpFlags::REMOTE_WRITE,
        Operation::ReadRequest => QpFlags::REMOTE_READ,
        _ => QpFlags::REMOTE_ATOMIC,
    };
    if !w.q.has(right) {
        return Err(INVALID);
    }
    match operation {
        Operation::Write => write(w, packet, packet.headers.bth().opcode()).map(|()| true),
        Operation::ReadRequest => read(w, packet).map(|()| false),
        Operation::CompareSwap | Operation::FetchAdd => atomic(w, packet, operation).map(|()| false),
        _ => Err(INVALID),
    }
}

/// IBTA 9.7.4.1.6: all packets but the last carry exactly the path MTU.
fn check_length(w: &Work<'_, '_, '_>, len: u32, opcode: BthOpcode) -> Result<(), Refusal> {
    let mtu = u32::from(w.q.mtu);
    let good = match (opcode.is_only(), opcode.is_last()) {
        (true, _) => len <= mtu,
        (_, true) => len >= 1 && len <= mtu,
        _ => len == mtu,
    };
    if good { Ok(()) } else { Err(INVALID) }
}

fn send(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, opcode: BthOpcode) -> Result<(), Refusal> {
    check_length(w, packet.len, opcode)?;
    if opcode.is_first() {
        let index = receive::take(w).ok_or(NotReady)?;
        w.q.rx = RxMessage { kind: SEND, wqe_index: index.into(), ..RxMessage::default() };
    }
    let protection = Fatal(NakCode::RemoteOperational, Some(CqeSyndrome::LocalProtErr));
    let index = w.q.rx.wqe_index as u16;
    let (kind, imm) = meaning(packet, opcode);
    if kind == CqeOpcode::RespSendInv {
        translate::may_invalidate(w.func, w.user(), imm, true).map_err(|_| ACCESS)?;
    }
    let (mut fetched, mut inline) = ([0; INLINE_32], None);
    if packet.len > 0 {
        let Some(domain) = receive::load(w, index) else { return Err(protection) };
        let room = lists::capacity(&w.step.buffers.receive).min(MAX_MESSAGE.into());
        if u64::from(w.q.rx.done) + u64::from(packet.len) > room {
            // IBTA 9.7.4.1.6: longer than the receive buffer.
            return Err(Fatal(NakCode::InvalidRequest, Some(CqeSyndrome::LocalLengthErr)));
        }
        if opcode.is_only() && packet.len <= INLINE_32 as u32 && w.q.has(QpFlags::SCATTER_RES) {
            // The keys are checked all the same; the driver copies where they point.
            let Buffers { receive, pieces, .. } = &mut *w.step.buffers;
            lists::resolve(w.func, domain, receive, w.q.rx.done, packet.len, lists::SCATTER, pieces)
                .map_err(|_| protection)?;
            inline = Some(match packet.data {
                SlotPayload::Bytes(bytes) => bytes,
                SlotPayload::Pieces(..) => {
                    lists::bytes(w.step, &packet.data, &mut fetched).map_err(|_| Lost)?;
                    &fetched[..packet.len as usize]
                }
            });
        } else {
            scatter(w, packet, domain, protection)?;
        }
    }
    w.q.rx.done += packet.len;
    if !opcode.is_last() {
        return Ok(());
    }
    let len = w.q.rx.done;
    if kind == CqeOpcode::RespSendInv {
        // IBTA 10.6.5.1: dead before the completion can be seen.
        translate::invalidate(w.func, w.user(), imm, true).map_err(|_| ACCESS)?;
    }
    complete(w, kind, index, len, imm, packet.headers.bth().se(), inline)
}

/// What a SEND completes with, and the immediate data or the key to invalidate that come with its last packet.
#[inline(always)]
fn meaning(packet: &Packet<'_>, opcode: BthOpcode) -> (CqeOpcode, u32) {
    match opcode.ext_len() {
        0 => (CqeOpcode::RespSend, 0),
        _ => extended(packet),
    }
}

/// [`meaning`] of a packet with an extended header.
#[inline(never)]
fn extended(packet: &Packet<'_>) -> (CqeOpcode, u32) {
    match (packet.headers.imm(), packet.headers.ieth()) {
        (Some(imm), _) => (CqeOpcode::RespSendImm, imm),
        (_, Some(key)) => (CqeOpcode::RespSendInv, key),
        _ => (CqeOpcode::RespSend, 0),
    }
}

/// Puts a packet of a SEND where the receive WQE wants it.
#[inline(never)]
fn scatter(
    w: &mut Work<'_, '_, '_>,
    packet: &Packet<'_>,
    domain: lists::Domain,
    protection: Refusal,
) -> Result<(), Refusal> {
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    let list = &w.step.buffers.receive;
    let found = lists::resolve(w.func, domain, list, w.q.rx.done, packet.len, lists::SCATTER, &mut pieces);
    let rid = w.func.rid();
    let result = match found {
        Ok(()) => lists::place(w.step, &packet.data, rid, &pieces).map_err(|abort| match abort {
            crate::host::Abort::Source | crate::host::Abort::Gone => Lost,
            crate::host::Abort::Destination => protection,
        }),
        Err(_) => Err(protection),
    };
    w.step.buffers.pieces = pieces;
    result
}

/// A message is whole: MSN, receive WQE, completion.
#[inline(always)]
fn complete(
    w: &mut Work<'_, '_, '_>,
    kind: CqeOpcode,
    index: u16,
    len: u32,
    imm: u32,
    solicited: bool,
    inline: Option<&[u8]>,
) -> Result<(), Refusal> {
    finish_message(w);
    receive::done(w);
    let (user, qpn, now) = (completion::user_index(w, true), w.qpn(), completion::timestamp(w.step.now));
    let place = completion::place(w.func, w.step, w.q.cqn_rcv, solicited);
    let cqe = place.ok_or(Fatal(NakCode::RemoteOperational, None))?;
    let mut format = CqeFormat::NoInline;
    if let Some(inline) = inline {
        let len = inline.len().min(INLINE_32);
        cqe.as_bytes_mut()[..len].copy_from_slice(&inline[..len]);
        format = CqeFormat::Inline32;
    }
    cqe.set()
        .srqn_uidx(user)
        .imm_inval_pkey(imm)
        .byte_cnt(len)
        .timestamp(now)
        .qpn(Qpn(qpn))
        .wqe_counter(index)
        .opcode(kind)
        .cqe_format(format)
        .se(solicited);
    Ok(())
}

fn finish_message(w: &mut Work<'_, '_, '_>) {
    w.q.rx = RxMessage::default();
    w.q.rx_msn = w.q.rx_msn.wrapping_add(1) & 0xff_ffff;
}

fn write(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, opcode: BthOpcode) -> Result<(), Refusal> {
    check_length(w, packet.len, opcode)?;
    let mut rx = w.q.rx;
    if let Some(reth) = packet.headers.reth() {
        w.count(Counters::RxWriteRequests);
        rx = RxMessage { kind: WRITE, length: reth.dma_len(), va: reth.va(), rkey: reth.rkey(), ..rx };
        if rx.length > MAX_MESSAGE {
            return Err(INVALID);
        }
        if rx.length > 0 {
            // As the specification has it the whole range is checked first; a ConnectX-5 checks packet by packet.
            let first = if w.profile() == Profile::Ibta { rx.length } else { packet.len };
            translate::check(w.func, w.user(), rx.rkey, rx.va, first.into(), access::REMOTE_WRITE)
                .map_err(|_| remote_access(w))?;
        }
    }
    let done = rx.done.checked_add(packet.len).filter(|done| *done <= rx.length).ok_or(INVALID)?;
    if opcode.is_last() != (done == rx.length) {
        return Err(INVALID);
    }
    // A WRITE with immediate meets an empty receive queue on its last packet only, before it is executed.
    let index = match packet.headers.imm() {
        Some(_) => Some(receive::take(w).ok_or(NotReady)?),
        None => None,
    };
    if packet.len > 0 {
        place_write(w, packet, &rx)?;
    }
    rx.done = done;
    w.q.rx = rx;
    if !opcode.is_last() {
        return Ok(());
    }
    match (index, packet.headers.imm()) {
        (Some(index), Some(imm)) => {
            complete(w, CqeOpcode::RespWrImm, index, rx.length, imm, packet.headers.bth().se(), None)
        }
        _ => {
            finish_message(w);
            Ok(())
        }
    }
}

#[cold]
fn remote_access(w: &mut Work<'_, '_, '_>) -> Refusal {
    // A ConnectX-5 counts it where it was asked for only (row 60 of the conformance table).
    if w.profile() == Profile::Ibta {
        w.count(Counters::RespRemoteAccessErrors);
    }
    ACCESS
}

fn place_write(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, rx: &RxMessage) -> Result<(), Refusal> {
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    pieces.clear();
    let at = rx.va.wrapping_add(rx.done.into());
    let found =
        translate::pieces(w.func, w.user(), rx.rkey, at, packet.len, access::REMOTE_WRITE, &mut pieces);
    let rid = w.func.rid();
    let result = match found {
        Ok(()) => lists::place(w.step, &packet.data, rid, &pieces).map_err(|abort| match abort {
            crate::host::Abort::Source | crate::host::Abort::Gone => Lost,
            crate::host::Abort::Destination => ACCESS,
        }),
        Err(_) => Err(remote_access(w)),
    };
    w.step.buffers.pieces = pieces;
    result
}

/// Resources for READs and atomics.
pub(crate) fn resources(w: &Work<'_, '_, '_>) -> u32 {
    (1u32 << (w.q.log_rra_max & 7)).min(ReadResource::PER_QP as u32)
}

/// Whether a READ or atomic more is within what the QP has resources for (IBTA 9.7.4.1.3). Those that are answered and
/// only replayed do not count.
fn has_resource(w: &Work<'_, '_, '_>) -> bool {
    let under_way = w.q.rr_tail.wrapping_sub(w.q.rr_send);
    under_way < resources(w)
        || (0..under_way)
            .filter(|i| w.func.read_resource(w.qp, w.q.rr_send.wrapping_add(*i)).answered == 0)
            .count()
            < resources(w) as usize
}

/// Remembers a READ or atomic until it is answered, and behind that for duplicates.
fn resource(w: &mut Work<'_, '_, '_>, resource: ReadResource) -> Result<(), Refusal> {
    if !has_resource(w) {
        return Err(INVALID);
    }
    if w.q.rr_tail.wrapping_sub(w.q.rr_send) as usize >= ReadResource::PER_QP {
        // The place of the oldest is needed; a replay of it is dropped.
        w.q.rr_send = w.q.rr_send.wrapping_add(1);
        w.q.rr_packet = 0;
    }
    let packets = resource.packets;
    *w.func.read_resource_mut(w.qp, w.q.rr_tail) = resource;
    w.q.rr_tail = w.q.rr_tail.wrapping_add(1);
    w.q.rx_psn = Psn::new(w.q.rx_psn).add(packets).get();
    // The answer acknowledges all before it.
    w.q.set(QpFlags::ACK_OWED, false);
    Ok(())
}

fn read(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>) -> Result<(), Refusal> {
    w.count(Counters::RxReadRequests);
    let reth = packet.headers.reth().ok_or(INVALID)?;
    let length = reth.dma_len();
    if length > MAX_MESSAGE || packet.len != 0 {
        return Err(INVALID);
    }
    if length > 0 {
        translate::check(w.func, w.user(), reth.rkey(), reth.va(), length.into(), access::REMOTE_READ)
            .map_err(|_| remote_access(w))?;
    }
    let msn = w.q.rx_msn.wrapping_add(1) & 0xff_ffff;
    let one = ReadResource {
        kind: duplicate::READ,
        psn: w.q.rx_psn,
        packets: length.div_ceil(u32::from(w.q.mtu.max(256))).max(1),
        length,
        end: length,
        va: reth.va(),
        rkey: reth.rkey(),
        msn,
        xrc_srqn: w.q.xrc_srqn,
        ..ReadResource::default()
    };
    resource(w, one)?;
    w.q.rx_msn = msn;
    Ok(())
}

/// IBTA 9.4.5: an 8-byte compare-and-swap or fetch-and-add, done once; its answer is kept for duplicates.
fn atomic(w: &mut Work<'_, '_, '_>, packet: &Packet<'_>, operation: Operation) -> Result<(), Refusal> {
    w.count(Counters::RxAtomicRequests);
    let eth = packet.headers.atomic().ok_or(INVALID)?;
    if eth.va() % 8 != 0 || packet.len != 0 {
        return Err(INVALID);
    }
    let mut pieces = std::mem::take(&mut w.step.buffers.pieces);
    pieces.clear();
    let found = translate::pieces(w.func, w.user(), eth.rkey(), eth.va(), 8, access::ATOMIC, &mut pieces);
    let place = pieces.first().copied();
    w.step.buffers.pieces = pieces;
    found.map_err(|_: Fault| remote_access(w))?;
    let Some(place) = place else { return Err(ACCESS) };
    if !has_resource(w) {
        return Err(INVALID);
    }
    let mut word = [0; 8];
    let rid = w.func.rid();
    // Copies of earlier packets come first.
    if !w.step.flush() {
        return Err(Lost);
    }
    w.step.read(rid, place.at, &mut word).map_err(|abort| match abort {
        crate::host::Abort::Gone => Lost,
        _ => ACCESS,
    })?;
    w.step.reads = true;
    let original = u64::from_le_bytes(word);
    let value = match operation {
        Operation::FetchAdd => Some(original.wrapping_add(eth.swap_add())),
        _ => (original == eth.compare()).then_some(eth.swap_add()),
    };
    if let Some(value) = value {
        w.func.effect(Effect::Write { at: place.at, data: &value.to_le_bytes() });
    }
    // The next job must find the new value in memory.
    w.step.settle = true;
    let msn = w.q.rx_msn.wrapping_add(1) & 0xff_ffff;
    let one = ReadResource {
        kind: duplicate::ATOMIC,
        psn: w.q.rx_psn,
        packets: 1,
        va: eth.va(),
        rkey: eth.rkey(),
        msn,
        original,
        ..ReadResource::default()
    };
    resource(w, one)?;
    w.q.rx_msn = msn;
    Ok(())
}
