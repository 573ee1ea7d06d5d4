//! The adapter's services for the transport's responder: receive WQEs, memory of keys, completions; and its output: responses to READs and
//! atomics, then the pending acknowledgement (IBTA 9.7.5.1, 9.7.7).

use super::{
    completion, counter_of, event_of, flush, lists,
    packet::Packet,
    receive,
    step::Payload,
    work::{Failure, QpStage},
};
use crate::{
    Conformance,
    host::{Abort, Iova},
    region::{Effect, SlotPayload},
    state::QpFlags,
    translate::{self, access},
    transport::{self, Event, Message, ReadResource, Refusal, Reply, Responder, Responses, Rights, Status},
};
use hwspec::{
    context::ServiceType,
    cqe::{CqeFormat, CqeOpcode, INLINE_32},
    handle::{Psn, Qpn},
    wire::{self, Aeth, AtomicAckEth, AtomicEth, Bth, BthOpcode, NakCode, Reth, Syndrome},
};

const PROTECTION: Refusal = Refusal::PROTECTION;

impl transport::Packet for Packet<'_> {
    #[inline(always)]
    fn bth(&self) -> Bth {
        self.headers.bth()
    }
    #[inline(always)]
    fn reth(&self) -> Option<Reth> {
        self.headers.reth()
    }
    fn atomic(&self) -> Option<AtomicEth> {
        self.headers.atomic()
    }
    #[inline(always)]
    fn has_imm(&self) -> bool {
        self.headers.imm().is_some()
    }
    #[inline(always)]
    fn len(&self) -> u32 {
        self.len
    }
    #[inline(always)]
    fn packets(&self) -> u32 {
        self.packets
    }
    #[inline(always)]
    fn is_padded(&self) -> bool {
        self.padded
    }
}

impl Responses for QpStage<'_, '_, '_> {
    type Packet<'p> = Packet<'p>;
    type Word = Iova;

    #[inline(always)]
    fn responder(&self) -> &Responder {
        &self.q.responder
    }
    #[inline(always)]
    fn responder_mut(&mut self) -> &mut Responder {
        &mut self.q.responder
    }
    fn resource(&self, at: u32) -> ReadResource {
        *self.func.read_resource(self.qp, at)
    }
    fn resource_mut(&mut self, at: u32) -> &mut ReadResource {
        self.func.read_resource_mut(self.qp, at)
    }
    #[inline(always)]
    fn mtu(&self) -> u32 {
        self.q.mtu.into()
    }
    fn target(&self) -> u32 {
        self.q.xrc_srqn
    }
    #[inline(always)]
    fn guarded(&mut self, execute: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        if self.q.has(QpFlags::HAS_SRQ) { of_shared(self, execute) } else { execute(self) }
    }
    #[inline(always)]
    fn take_receive(&mut self) -> Option<u32> {
        receive::take(self).map(u32::from)
    }
    fn abort_receive(&mut self) {
        if self.q.has(QpFlags::HAS_SRQ) {
            let (aborted, index) = (Failure::of(Status::RemoteAborted), self.q.responder.rx.receive as u16);
            completion::fail(self, CqeOpcode::RespErr, aborted, index, 0);
        }
    }
    #[inline(always)]
    fn receive(&mut self, packet: &Packet<'_>) -> Result<(), Refusal> {
        send(self, packet, packet.headers.bth().opcode())
    }
    fn reaches(&self, rkey: u32, va: u64, len: u32, right: Rights) -> bool {
        let access = if right == Rights::WRITE { access::REMOTE_WRITE } else { access::REMOTE_READ };
        translate::check(self.func, self.user(), rkey, va, len.into(), access).is_ok()
    }
    #[cold]
    fn is_there(&mut self, rkey: u32, va: u64, len: u32) -> bool {
        let found = self.resolve_key(self.receiver.pd, (rkey, va), len, access::REMOTE_READ);
        found.is_ok() && lists::are_there(self.step, self.func.rid())
    }
    fn checks_ahead(&self) -> bool {
        self.profile() == Conformance::Ibta
    }
    #[inline(always)]
    fn write(&mut self, packet: &Packet<'_>, rx: &Message) -> Result<(), Refusal> {
        let at = rx.va.wrapping_add(rx.done.into());
        match self.resolve_key(self.receiver.pd, (rx.rkey, at), packet.len, access::REMOTE_WRITE) {
            Ok(()) => place(self, packet, Refusal::ACCESS),
            // Handling the packets one by one finds the one to refuse and count.
            Err(_) if packet.packets > 1 => Err(Refusal::ACCESS),
            Err(_) => Err(transport::access(self)),
        }
    }
    fn complete_write(
        &mut self,
        packet: &Packet<'_>,
        receive: u32,
        message: &Message,
    ) -> Result<(), Refusal> {
        let (imm, se) = (packet.headers.imm().unwrap_or_default(), packet.headers.bth().se());
        complete(self, CqeOpcode::RespWrImm, receive as u16, message.length, imm, se, None)
    }
    fn locate(&mut self, eth: &AtomicEth) -> Option<Iova> {
        self.resolve_key(self.receiver.pd, (eth.rkey(), eth.va()), 8, access::ATOMIC).ok()?;
        self.step.buffers.pieces.first().map(|piece| piece.at)
    }
    fn modify(&mut self, at: Iova, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Refusal> {
        let mut word = [0; 8];
        let rid = self.func.rid();
        // Copies of earlier packets must be made first.
        if !self.step.flush() {
            return Err(Refusal::Lost);
        }
        self.step.read(rid, at, &mut word).map_err(|abort| match abort {
            Abort::Gone => Refusal::Lost,
            Abort::Source | Abort::Destination => Refusal::ACCESS,
        })?;
        self.step.reads = true;
        let original = u64::from_le_bytes(word);
        if let Some(value) = change(original) {
            self.func.effect(Effect::Write { at, data: &value.to_le_bytes() });
        }
        // The next job must find the new value in memory.
        self.step.settle = true;
        Ok(original)
    }
    fn end(&mut self) {
        fail(self);
    }
    fn note(&mut self, event: Event) {
        self.count_event(event);
    }
}

/// Executes a request of a QP with receives from a shared queue.
#[inline(never)]
fn of_shared<'a, 'r, 'h>(
    w: &mut QpStage<'a, 'r, 'h>,
    execute: impl FnOnce(&mut QpStage<'a, 'r, 'h>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let shared = receive::shared(w);
    let result = execute(w);
    // A WQE taken for a packet that does not count, or for an immediate that is not delivered, was not consumed.
    if result.is_err_and(|refusal| refusal == Refusal::Lost || w.q.responder.rx.kind != Message::SEND) {
        receive::give_back(w, shared);
    }
    result
}

/// Places a packet of a SEND in the receive WQE in use; the last packet completes it.
#[inline(always)]
fn send(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>, opcode: BthOpcode) -> Result<(), Refusal> {
    let index = w.q.responder.rx.receive as u16;
    let (kind, imm) = meaning(packet, opcode);
    if kind == CqeOpcode::RespSendInv {
        translate::may_invalidate(w.func, w.user(), imm, true).map_err(|_| Refusal::ACCESS)?;
    }
    let (mut fetched, mut inline) = ([0; INLINE_32], None);
    if packet.len > 0 {
        let Some(domain) = receive::load(w, index) else { return Err(PROTECTION) };
        let room = lists::capacity(&w.step.buffers.receive).min(transport::MAX_MESSAGE.into());
        if u64::from(w.q.responder.rx.done) + u64::from(packet.len) > room {
            return Err(Refusal::LENGTH);
        }
        // For a payload in the CQE as well, because the driver copies it to the list.
        w.resolve_receive(domain, w.q.responder.rx.done, packet.len).map_err(|_| PROTECTION)?;
        if opcode.is_only() && packet.len <= INLINE_32 as u32 && w.q.has(QpFlags::SCATTER_RES) {
            inline = Some(match packet.data {
                SlotPayload::Bytes(bytes) => bytes,
                SlotPayload::Pieces(..) => {
                    lists::bytes(w.step, &packet.data, &mut fetched).map_err(|_| Refusal::Lost)?;
                    &fetched[..packet.len as usize]
                }
            });
        } else {
            place(w, packet, PROTECTION)?;
        }
    }
    w.q.responder.rx.done += packet.len;
    if !opcode.is_last() {
        return Ok(());
    }
    let len = w.q.responder.rx.done;
    if kind == CqeOpcode::RespSendInv {
        // IBTA 10.6.5.1: the key is invalid before the completion becomes visible.
        translate::invalidate(w.func, w.user(), imm, true).map_err(|_| Refusal::ACCESS)?;
    }
    complete(w, kind, index, len, imm, packet.headers.bth().se(), inline)
}

/// The completion opcode of a SEND, and the immediate data or the key to invalidate from its last packet.
#[inline(always)]
fn meaning(packet: &Packet<'_>, opcode: BthOpcode) -> (CqeOpcode, u32) {
    match opcode.ext_len() {
        0 => (CqeOpcode::RespSend, 0),
        _ => extended(packet),
    }
}

/// [`meaning`] for a packet with an extended header.
#[inline(never)]
fn extended(packet: &Packet<'_>) -> (CqeOpcode, u32) {
    match (packet.headers.imm(), packet.headers.ieth()) {
        (Some(imm), _) => (CqeOpcode::RespSendImm, imm),
        (_, Some(key)) => (CqeOpcode::RespSendInv, key),
        _ => (CqeOpcode::RespSend, 0),
    }
}

/// Copies a packet's payload to the pieces of memory; `refusal` if they cannot be written.
#[inline(never)]
fn place(w: &mut QpStage<'_, '_, '_>, packet: &Packet<'_>, refusal: Refusal) -> Result<(), Refusal> {
    let rid = w.func.rid();
    let placed = lists::place(w.step, &packet.data, rid);
    placed.map_err(|abort| if abort == Abort::Destination { refusal } else { Refusal::Lost })
}

/// Finishes a message: MSN, receive WQE, completion.
#[inline(always)]
fn complete(
    w: &mut QpStage<'_, '_, '_>,
    kind: CqeOpcode,
    index: u16,
    len: u32,
    imm: u32,
    solicited: bool,
    inline: Option<&[u8]>,
) -> Result<(), Refusal> {
    w.q.responder.finish_message();
    receive::done(w);
    let (user, qpn, now) = (completion::user_index(w, true), w.qpn(), completion::timestamp(w.step.now));
    let place = completion::place(w.func, w.step, w.receiver.cqn, solicited);
    let cqe = place.ok_or(Refusal::Fatal(NakCode::RemoteOperational, None))?;
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

/// True if there are packets to send.
#[inline]
pub(crate) fn waiting(w: &QpStage<'_, '_, '_>) -> bool {
    w.q.responder.owes_answers() || w.q.responder.owes_ack()
}

/// Sends up to `budget` packets.
#[inline(always)]
pub(crate) fn run(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) {
    if w.q.responder.owes_answers() && !answers(w, budget) || !w.q.responder.owes_ack() {
        return;
    }
    if *budget == 0 {
        w.ready = true;
        return;
    }
    *budget -= 1;
    let (psn, syndrome, ends) = w.q.responder.take_ack();
    w.send_ack(psn, syndrome);
    if ends {
        fail(w);
    }
}

/// Sends the pending acknowledgement of a QP that may not send more now, so that the peer's ACK timer does not expire. Earlier responses go
/// first, so the acknowledgement waits with them.
#[cold]
pub(crate) fn acknowledge(w: &mut QpStage<'_, '_, '_>, budget: u32) {
    if w.receives() && w.is(ServiceType::Rc) && !w.q.responder.owes_answers() {
        run(w, &mut budget.min(1));
    }
}

/// Sends the pending responses to READs and atomics. False if there are more than may be sent now.
#[inline(never)]
fn answers(w: &mut QpStage<'_, '_, '_>, budget: &mut u32) -> bool {
    let mut alike = false;
    while let Some(reply) = transport::next_reply(w) {
        if *budget == 0 {
            w.ready = true;
            return false;
        }
        let middle = reply.opcode == BthOpcode::RcReadRespMiddle;
        if middle && alike && w.step.trains {
            if let Some((packets, payload)) = gather_train(w, &reply, *budget) {
                w.send_alike(reply.psn, false, packets, payload);
                *budget -= u32::from(packets);
                transport::replied(w, &reply, packets.into());
                continue;
            }
        }
        let payload = match gather(w, &reply) {
            Ok(payload) => payload,
            // The program that owns the memory has exited.
            Err(Abort::Gone) => {
                transport::finish(w);
                continue;
            }
            Err(_) => {
                transport::refuse_reply(w, &reply);
                break;
            }
        };
        if middle && alike {
            w.send_alike(reply.psn, false, 1, payload);
        } else {
            alike = w.send(&packet(w, &reply), &payload) && middle;
        }
        *budget -= 1;
        transport::replied(w, &reply, 1);
    }
    true
}

/// The headers of a response.
fn packet(w: &QpStage<'_, '_, '_>, reply: &Reply) -> wire::Packet {
    let (mut aeth, mut atomic_ack) = (Aeth::zeroed(), AtomicAckEth::zeroed());
    aeth.set().syndrome(Syndrome::ACK).msn(Psn::new(reply.resource.msn));
    atomic_ack.set().original(reply.resource.original);
    wire::Packet { bth: w.bth(reply.opcode, reply.psn.get()), aeth, atomic_ack, ..wire::Packet::default() }
}

/// Ends the connection after a refused request: receive completion, event, ERR (IBTA 9.9.3).
#[cold]
pub(crate) fn fail(w: &mut QpStage<'_, '_, '_>) {
    let (code, status) = w.q.responder.refusal();
    match status {
        Some(status) if w.q.responder.rx.kind == Message::SEND => {
            let index = w.q.responder.rx.receive as u16;
            if let Some(counter) = counter_of(status) {
                w.count(counter);
            }
            completion::fail(w, CqeOpcode::RespErr, Failure::of(status), index, 0);
            receive::done(w);
            w.q.responder.rx = Message::default();
        }
        Some(_) => {}
        None => w.raise(event_of(code)),
    }
    flush::enter_error(w);
}

/// Payload of as many MIDDLEs from `reply` on as fit in one frame. `None` if there are fewer than two; memory errors are detected when they
/// are sent one by one.
#[inline(never)]
fn gather_train(w: &mut QpStage<'_, '_, '_>, reply: &Reply, budget: u32) -> Option<(u16, Payload)> {
    let most = reply.middles().min(budget).min(lists::LONGEST_TRAIN);
    if most < 2 || !w.is(ServiceType::Rc) {
        return None;
    }
    let (one, at) = (&reply.resource, reply.resource.va.wrapping_add(reply.from.into()));
    w.resolve_key(w.receiver.pd, (one.rkey, at), most * reply.len, access::REMOTE_READ).ok()?;
    lists::of_whole(&w.step.buffers.pieces, reply.len)
}

/// Payload of a response.
fn gather(w: &mut QpStage<'_, '_, '_>, reply: &Reply) -> Result<Payload, Abort> {
    let (one, from, len) = (&reply.resource, reply.from, reply.len);
    if len == 0 {
        return Ok(Payload::Empty);
    }
    let at = one.va.wrapping_add(from.into());
    let named = if one.xrc_srqn == 0 { None } else { receive::named(w, one.xrc_srqn) };
    let pd = named.map_or(w.receiver.pd, |srq| srq.pd);
    let found = w.resolve_key(pd, (one.rkey, at), len, access::REMOTE_READ);
    // With too many pieces the payload is copied; then earlier copies must be made first.
    if found.is_err() || w.step.buffers.pieces.len() > 4 && !w.step.flush() {
        return Err(Abort::Source);
    }
    let rid = w.func.rid();
    lists::payload(w.step, rid, false)
}
