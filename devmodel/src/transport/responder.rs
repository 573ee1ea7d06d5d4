//! The responder: requests in the order of their PSNs (IBTA 9.7.4).
//!
//! Checks come in the order of the specification: PSN, opcode sequence, rights of the connection, lengths, resources, keys.
//! A request found wrong is answered with a NAK behind all answers still owed; the connection ends when it is sent.

use super::{Event, MAX_MESSAGE, Notifier, ReadResource, Status, duplicate};
use hwspec::{
    handle::Psn,
    layout::Bits,
    wire::{AtomicEth, Bth, BthOpcode, NakCode, Operation, Reth, Syndrome},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// AETH syndrome bytes.
const NAK: u8 = 0x60;
const RNR: u8 = 0x20;

bitflags::bitflags! {
    /// The peer's rights to our memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// READs.
        const READ = 1 << 0;
        /// WRITEs.
        const WRITE = 1 << 1;
        /// Atomics.
        const ATOMIC = 1 << 2;
    }
}

/// Message that is being received: between FIRST and LAST.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Message {
    /// [`NONE`](Self::NONE), [`SEND`](Self::SEND), [`WRITE`](Self::WRITE).
    pub kind: u32,
    /// The receive in use (SEND), as whoever gave it numbers it.
    pub receive: u32,
    /// Bytes taken so far.
    pub done: u32,
    /// Bytes announced by the RETH (WRITE).
    pub length: u32,
    /// Address of the RETH (WRITE).
    pub va: u64,
    /// Key of the RETH (WRITE).
    pub rkey: u32,
    /// Padding.
    pub reserved: u32,
}

impl Message {
    /// No message.
    pub const NONE: u32 = 0;
    /// A SEND.
    pub const SEND: u32 = 1;
    /// A WRITE.
    pub const WRITE: u32 = 2;
}

/// The responder's half of a connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Responder {
    /// PSN expected next.
    pub psn: u32,
    /// Messages completed, 24 bits.
    pub msn: u32,
    /// PSN the next acknowledgement will carry.
    pub ack_psn: u32,
    /// The answer owed to the requester at `ack_psn`: an AETH syndrome.
    pub ack_syndrome: u8,
    /// A sequence NAK was sent (1), an RNR NAK was sent (2), an acknowledgement is owed (4).
    pub flags: u8,
    /// [`Rights`].
    pub rights: u8,
    /// With a fatal NAK owed: what the receive in use completes with, a [`Status`]; 0 none.
    pub status: u8,
    /// Attributes: RNR NAK timer code, log2 of READs and atomics accepted.
    pub min_rnr_nak: u8,
    /// See `min_rnr_nak`.
    pub log_resources: u8,
    /// Padding.
    pub reserved: u16,
    /// READ and atomic resources: next to fill, free-running; places are the index modulo [`ReadResource::PER_QP`].
    pub tail: u32,
    /// Oldest resource with responses still to be sent, and how many went out.
    pub send: u32,
    /// See `send`.
    pub packet: u32,
    /// When the peer is notified of congestion.
    pub notifier: Notifier,
    /// Message under reception.
    pub rx: Message,
}

impl Responder {
    /// A sequence NAK was sent and the expected PSN has not come yet (IBTA 9.7.5.1.2).
    const NAK_SENT: u8 = 1;
    /// An RNR NAK was sent and the PSN has not come again yet.
    const RNR_SENT: u8 = 2;
    /// The acknowledgement for `ack_psn` is still to be sent.
    const ACK_OWED: u8 = 4;

    /// Expects `psn`.
    pub(crate) fn begin(&mut self, psn: u32) {
        (self.psn, self.ack_psn) = (psn, psn);
    }

    /// Allows or forbids something.
    pub(crate) fn allow(&mut self, right: Rights, on: bool) {
        self.rights = if on { self.rights | right.bits() } else { self.rights & !right.bits() };
    }

    /// True if all of `rights` are given.
    #[inline(always)]
    pub(crate) fn allows(&self, rights: Rights) -> bool {
        self.rights & rights.bits() == rights.bits()
    }

    /// The connection has ended: nothing is owed any more.
    pub(crate) fn stop(&mut self) {
        self.flags &= !Self::ACK_OWED;
        self.send = self.tail;
    }

    /// True if an acknowledgement is owed.
    #[inline(always)]
    pub(crate) fn owes_ack(&self) -> bool {
        self.flags & Self::ACK_OWED != 0
    }

    /// True if READs or atomics are to be answered.
    #[inline(always)]
    pub(crate) fn owes_answers(&self) -> bool {
        self.send != self.tail
    }

    /// A NAK that ends the connection waits to be sent; nothing behind it counts.
    #[inline(always)]
    pub(crate) fn is_refusing(&self) -> bool {
        self.owes_ack() && self.ack_syndrome > NAK
    }

    /// Owes the requester an answer at `psn`.
    #[inline(always)]
    fn owe(&mut self, syndrome: u8, psn: u32) {
        self.flags |= Self::ACK_OWED;
        self.ack_syndrome = syndrome;
        self.ack_psn = psn;
    }

    /// An acknowledgement of all before the PSN expected.
    #[inline(always)]
    pub(super) fn owe_ack(&mut self) {
        self.owe(Syndrome::ACK.into_bits() as u8, Psn::new(self.psn).add(0xff_ffff).get());
    }

    /// The acknowledgement owed is no more.
    #[inline(always)]
    fn owe_nothing(&mut self) {
        self.flags &= !Self::ACK_OWED;
    }

    /// The acknowledgement that is to be sent: its PSN and what it says. True if the connection ends with it.
    #[inline(always)]
    pub(crate) fn take_ack(&mut self) -> (u32, Syndrome, bool) {
        self.owe_nothing();
        (self.ack_psn, Syndrome::from_bits(self.ack_syndrome.into()), self.ack_syndrome > NAK)
    }

    /// The request expected is refused for good; the receive in use completes with `status`.
    #[cold]
    pub(crate) fn refuse(&mut self, code: NakCode, status: Option<Status>) {
        self.refuse_at(self.psn, code, status);
    }

    /// [`refuse`](Self::refuse), at a PSN whose request was accepted already.
    #[cold]
    pub(crate) fn refuse_at(&mut self, psn: u32, code: NakCode, status: Option<Status>) {
        self.status = Status::stored(status);
        self.owe(NAK | code.raw(), psn);
    }

    /// Why the connection ends: the code of the NAK and what the receive in use completes with.
    pub(crate) fn refusal(&self) -> (NakCode, Option<Status>) {
        (NakCode::from_raw(self.ack_syndrome & 0x1f), Status::of_receive(self.status))
    }

    /// A message is whole.
    #[inline(always)]
    pub(crate) fn finish_message(&mut self) {
        self.rx = Message::default();
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    /// Resources for READs and atomics.
    pub(super) fn resources(&self) -> u32 {
        (1u32 << (self.log_resources & 7)).min(ReadResource::PER_QP as u32)
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Receiver not ready: try again later.
    NotReady,
    /// A NAK that ends the connection, and what the receive in use completes with.
    Fatal(NakCode, Option<Status>),
    /// The packet counts as lost.
    Lost,
}
use Refusal::{Fatal, Lost, NotReady};

impl Refusal {
    /// The request is invalid.
    pub(crate) const INVALID: Self = Fatal(NakCode::InvalidRequest, None);
    /// The memory that a request names does not allow it.
    pub(crate) const ACCESS: Self = Fatal(NakCode::RemoteAccess, None);
    /// The receive in use names memory that is not its program's.
    pub(crate) const PROTECTION: Self = Fatal(NakCode::RemoteOperational, Some(Status::LocalProtection));
    /// The message is longer than the receive (IBTA 9.7.4.1.6).
    pub(crate) const LENGTH: Self = Fatal(NakCode::InvalidRequest, Some(Status::LocalLength));
}

/// A packet that arrived, as the transport sees it.
pub(crate) trait Packet {
    /// Its BTH.
    fn bth(&self) -> Bth;
    /// Where a WRITE goes or a READ comes from.
    fn reth(&self) -> Option<Reth>;
    /// Operands of an atomic.
    fn atomic(&self) -> Option<AtomicEth>;
    /// True if immediate data follow the headers.
    fn has_imm(&self) -> bool;
    /// Bytes of payload, pad excluded.
    fn len(&self) -> u32;
    /// Packets of a [train]; 1 of any other.
    fn packets(&self) -> u32 {
        1
    }
    /// True if payload and pad together are whole words, as they must be (IBTA 9.2.4).
    fn is_padded(&self) -> bool;
}

/// The surroundings that a responder needs.
pub(crate) trait Responses: Sized {
    /// A packet.
    type Packet<'p>: Packet;
    /// The memory that an atomic is for.
    type Word;

    /// Its row.
    fn responder(&self) -> &Responder;
    /// Its row, to change.
    fn responder_mut(&mut self) -> &mut Responder;
    /// The resource at a free-running index.
    fn resource(&self, at: u32) -> ReadResource;
    /// The resource at a free-running index, to change.
    fn resource_mut(&mut self, at: u32) -> &mut ReadResource;
    /// Path MTU in bytes.
    fn mtu(&self) -> u32;
    /// XRC: the SRQ that the request at hand names; else 0.
    fn target(&self) -> u32;
    /// Runs `execute`; a shared receive that was taken for a packet which does not count goes back.
    fn guarded(&mut self, execute: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal>;
    /// Takes a receive for a message that begins, or ends with immediate data. It counts as used when the message is whole.
    fn take_receive(&mut self) -> Option<u32>;
    /// The receive in use is not filled, for its message was broken off. One that others share completes with an error, for others
    /// may have been taken since; any other is taken by the next message.
    fn abort_receive(&mut self);
    /// Puts a packet of a SEND into the receive in use, and completes the receive with the message's last.
    fn receive(&mut self, packet: &Self::Packet<'_>) -> Result<(), Refusal>;
    /// True if the peer may do what `right` says with these bytes of our memory.
    fn reaches(&self, rkey: u32, va: u64, len: u32, right: Rights) -> bool;
    /// True if the bytes of our memory that the first packet of an answer carries are there; asked when the peer did not get them.
    fn is_there(&mut self, rkey: u32, va: u64, len: u32) -> bool;
    /// True if the whole range of a WRITE is checked with its first packet, as the specification has it, or each packet's own.
    fn checks_ahead(&self) -> bool;
    /// Puts a packet of the WRITE `message` into memory.
    fn write(&mut self, packet: &Self::Packet<'_>, message: &Message) -> Result<(), Refusal>;
    /// A WRITE with immediate data is whole: completes `receive`.
    fn complete_write(
        &mut self,
        packet: &Self::Packet<'_>,
        receive: u32,
        message: &Message,
    ) -> Result<(), Refusal>;
    /// Finds the memory of an atomic, if the peer may have it.
    fn locate(&mut self, eth: &AtomicEth) -> Option<Self::Word>;
    /// Reads a word and replaces it by what `change` makes of it, if anything.
    fn modify(&mut self, word: Self::Word, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Refusal>;
    /// The connection ends because of a request: see [`Responder::refusal`].
    fn end(&mut self);
    /// Something happened.
    fn note(&mut self, event: Event);
}

/// A request packet.
#[inline(always)]
pub(crate) fn request<X: Responses>(x: &mut X, packet: &X::Packet<'_>) {
    if x.responder().is_refusing() {
        return;
    }
    let ahead = packet.bth().psn().ahead_of(Psn::new(x.responder().psn));
    if ahead > 0 {
        return out_of_sequence(x);
    }
    if ahead < 0 {
        return duplicate::answer(x, packet);
    }
    let q = x.responder_mut();
    let before = (q.rx, q.flags);
    q.flags &= !(Responder::NAK_SENT | Responder::RNR_SENT);
    if let Err(refusal) = x.guarded(|x| execute(x, packet)) {
        refused(x, refusal, &before);
    }
}

/// A train of full MIDDLEs, taken as one. False if they are to be looked at one by one, for they are not what is expected or the last of
/// them will not be executed; nothing has come of them then.
#[inline]
pub(crate) fn train<X: Responses>(x: &mut X, packets: &X::Packet<'_>) -> bool {
    if x.responder().is_refusing() || packets.bth().psn() != Psn::new(x.responder().psn) {
        return false;
    }
    let q = x.responder_mut();
    let before = (q.rx, q.flags);
    q.flags &= !(Responder::NAK_SENT | Responder::RNR_SENT);
    let done = x.guarded(|x| execute(x, packets)).is_ok();
    if !done {
        let q = x.responder_mut();
        (q.rx, q.flags) = before;
    }
    done
}

/// A request was not executed; `before` is what it found: the message under way and the flags.
#[cold]
fn refused<X: Responses>(x: &mut X, refusal: Refusal, before: &(Message, u8)) {
    let q = x.responder_mut();
    match refusal {
        // As if it had never come; what else the row holds of it nothing depends on.
        Lost => (q.rx, q.flags) = *before,
        NotReady => {
            q.flags |= Responder::RNR_SENT;
            q.owe(RNR | q.min_rnr_nak & 0x1f, q.psn);
            x.note(Event::NoReceive);
        }
        Fatal(code, status) => q.refuse(code, status),
    }
}

/// A request of an unreliable connection, in sequence. False if it is dropped.
#[cold]
pub(super) fn unanswered<X: Responses>(x: &mut X, packet: &X::Packet<'_>) -> bool {
    let result = execute(x, packet);
    x.responder_mut().owe_nothing();
    match result {
        Ok(()) => true,
        Err(NotReady) => {
            x.note(Event::NoReceive);
            false
        }
        Err(Fatal(code, Some(status))) => {
            x.responder_mut().refuse(code, Some(status));
            x.responder_mut().owe_nothing();
            x.end();
            true
        }
        Err(Fatal(_, None) | Lost) => false,
    }
}

/// IBTA 9.7.5.1.2: one NAK for a gap, then silence until the PSN expected arrives. Behind an RNR NAK all is dropped.
#[cold]
fn out_of_sequence<X: Responses>(x: &mut X) {
    x.note(Event::OutOfSequence);
    let q = x.responder_mut();
    if q.flags & (Responder::NAK_SENT | Responder::RNR_SENT) == 0 {
        q.flags |= Responder::NAK_SENT;
        q.owe(NAK, q.psn);
    }
}

/// The packet with the PSN expected.
#[inline(always)]
fn execute<X: Responses>(x: &mut X, packet: &X::Packet<'_>) -> Result<(), Refusal> {
    let bth = packet.bth();
    let opcode = bth.opcode();
    // IBTA 9.7.4.1.2: reserved opcodes, and the sequence of FIRST, MIDDLE, LAST.
    let operation = opcode.operation().ok_or(Refusal::INVALID)?;
    let expected = match operation {
        Operation::Send if !opcode.is_first() => Message::SEND,
        Operation::Write if !opcode.is_first() => Message::WRITE,
        Operation::Send | Operation::Write => Message::NONE,
        Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd => Message::NONE,
        Operation::ReadResponse | Operation::Ack | Operation::AtomicAck | Operation::Cnp => {
            return Err(Refusal::INVALID);
        }
    };
    if x.responder().rx.kind != expected || !packet.is_padded() {
        return Err(Refusal::INVALID);
    }
    let done = match operation {
        Operation::Send => send(x, packet, opcode).map(|()| true),
        _ => remote(x, packet, operation),
    };
    if !done? {
        return Ok(());
    }
    let q = x.responder_mut();
    q.psn = Psn::new(q.psn).add(packet.packets()).get();
    if bth.ack_req() {
        q.owe_ack();
    } else if q.owes_ack() && q.ack_syndrome >= RNR {
        // The gap is closed.
        q.owe_nothing();
    }
    Ok(())
}

/// An operation on our memory that the connection must allow. False if it is answered later, with what it asks for.
#[inline(never)]
fn remote<X: Responses>(x: &mut X, packet: &X::Packet<'_>, operation: Operation) -> Result<bool, Refusal> {
    let allowed = |right| if x.responder().allows(right) { Ok(()) } else { Err(Refusal::INVALID) };
    match operation {
        Operation::Write => {
            allowed(Rights::WRITE)?;
            write(x, packet, packet.bth().opcode()).map(|()| true)
        }
        Operation::ReadRequest => {
            allowed(Rights::READ)?;
            read(x, packet).map(|()| false)
        }
        Operation::CompareSwap => {
            allowed(Rights::ATOMIC)?;
            let change = |eth: &AtomicEth, old: u64| (old == eth.compare()).then_some(eth.swap_add());
            atomic(x, packet, change).map(|()| false)
        }
        Operation::FetchAdd => {
            allowed(Rights::ATOMIC)?;
            atomic(x, packet, |eth, old| Some(old.wrapping_add(eth.swap_add()))).map(|()| false)
        }
        Operation::Send
        | Operation::ReadResponse
        | Operation::Ack
        | Operation::AtomicAck
        | Operation::Cnp => Err(Refusal::INVALID),
    }
}

/// IBTA 9.7.4.1.6: all packets but the last carry exactly the path MTU.
#[inline(always)]
fn check_length(mtu: u32, len: u32, opcode: BthOpcode) -> Result<(), Refusal> {
    let good = match (opcode.is_only(), opcode.is_last()) {
        (true, _) => len <= mtu,
        (_, true) => len >= 1 && len <= mtu,
        _ => len == mtu,
    };
    if good { Ok(()) } else { Err(Refusal::INVALID) }
}

#[inline(always)]
fn send<X: Responses>(x: &mut X, packet: &X::Packet<'_>, opcode: BthOpcode) -> Result<(), Refusal> {
    check_length(x.mtu() * packet.packets(), packet.len(), opcode)?;
    if opcode.is_first() {
        let receive = x.take_receive().ok_or(NotReady)?;
        x.responder_mut().rx = Message { kind: Message::SEND, receive, ..Message::default() };
    }
    x.receive(packet)
}

#[inline(always)]
fn write<X: Responses>(x: &mut X, packet: &X::Packet<'_>, opcode: BthOpcode) -> Result<(), Refusal> {
    check_length(x.mtu() * packet.packets(), packet.len(), opcode)?;
    let mut rx = x.responder().rx;
    if let Some(reth) = packet.reth() {
        x.note(Event::WriteRequest);
        rx = Message { kind: Message::WRITE, length: reth.dma_len(), va: reth.va(), rkey: reth.rkey(), ..rx };
        if rx.length > MAX_MESSAGE {
            return Err(Refusal::INVALID);
        }
        if rx.length > 0 {
            let first = if x.checks_ahead() { rx.length } else { packet.len() };
            if !x.reaches(rx.rkey, rx.va, first, Rights::WRITE) {
                return Err(access(x));
            }
        }
    }
    let done = rx.done.checked_add(packet.len()).filter(|done| *done <= rx.length);
    let done = done.ok_or(Refusal::INVALID)?;
    if opcode.is_last() != (done == rx.length) {
        return Err(Refusal::INVALID);
    }
    // A WRITE with immediate meets an empty receive queue on its last packet only, before it is executed.
    let receive = match packet.has_imm() {
        true => Some(x.take_receive().ok_or(NotReady)?),
        false => None,
    };
    if packet.len() > 0 {
        x.write(packet, &rx)?;
    }
    rx.done = done;
    x.responder_mut().rx = rx;
    if !opcode.is_last() {
        return Ok(());
    }
    match receive {
        Some(receive) => x.complete_write(packet, receive, &rx),
        None => {
            x.responder_mut().finish_message();
            Ok(())
        }
    }
}

/// The memory that a request names does not allow it.
#[cold]
pub(crate) fn access<X: Responses>(x: &mut X) -> Refusal {
    x.note(Event::AccessRefused);
    Refusal::ACCESS
}

/// True if a READ or atomic more is within what there are resources for (IBTA 9.7.4.1.3). Those that are answered and only
/// replayed do not count.
fn has_resource<X: Responses>(x: &X) -> bool {
    let q = x.responder();
    let (under_way, resources) = (q.tail.wrapping_sub(q.send), q.resources());
    let open = |i: &u32| x.resource(q.send.wrapping_add(*i)).answered == 0;
    under_way < resources || (0..under_way).filter(open).count() < resources as usize
}

/// Remembers a READ or atomic until it is answered, and behind that for duplicates.
fn remember<X: Responses>(x: &mut X, one: ReadResource) {
    let q = x.responder_mut();
    if q.tail.wrapping_sub(q.send) as usize >= ReadResource::PER_QP {
        // The place of the oldest is needed; a replay of it is dropped.
        q.send = q.send.wrapping_add(1);
        q.packet = 0;
    }
    let at = q.tail;
    q.tail = at.wrapping_add(1);
    q.psn = Psn::new(q.psn).add(one.packets).get();
    q.msn = one.msn;
    // The answer acknowledges all before it.
    q.owe_nothing();
    *x.resource_mut(at) = one;
}

fn read<X: Responses>(x: &mut X, packet: &X::Packet<'_>) -> Result<(), Refusal> {
    x.note(Event::ReadRequest);
    let reth = packet.reth().ok_or(Refusal::INVALID)?;
    let length = reth.dma_len();
    if length > MAX_MESSAGE || packet.len() != 0 {
        return Err(Refusal::INVALID);
    }
    if length > 0 && !x.reaches(reth.rkey(), reth.va(), length, Rights::READ) {
        return Err(access(x));
    }
    if !has_resource(x) {
        return Err(Refusal::INVALID);
    }
    let q = x.responder();
    let one = ReadResource {
        kind: ReadResource::READ,
        psn: q.psn,
        packets: length.div_ceil(x.mtu().max(256)).max(1),
        length,
        end: length,
        va: reth.va(),
        rkey: reth.rkey(),
        msn: q.msn.wrapping_add(1) & 0xff_ffff,
        xrc_srqn: x.target(),
        ..ReadResource::default()
    };
    remember(x, one);
    Ok(())
}

/// IBTA 9.4.5: an 8-byte compare-and-swap or fetch-and-add, done once; its answer is kept for duplicates.
fn atomic<X: Responses>(
    x: &mut X,
    packet: &X::Packet<'_>,
    change: impl FnOnce(&AtomicEth, u64) -> Option<u64>,
) -> Result<(), Refusal> {
    x.note(Event::AtomicRequest);
    let eth = packet.atomic().ok_or(Refusal::INVALID)?;
    if eth.va() % 8 != 0 || packet.len() != 0 {
        return Err(Refusal::INVALID);
    }
    let Some(word) = x.locate(&eth) else { return Err(access(x)) };
    if !has_resource(x) {
        return Err(Refusal::INVALID);
    }
    let original = x.modify(word, |old| change(&eth, old))?;
    let q = x.responder();
    let one = ReadResource {
        kind: ReadResource::ATOMIC,
        psn: q.psn,
        packets: 1,
        va: eth.va(),
        rkey: eth.rkey(),
        msn: q.msn.wrapping_add(1) & 0xff_ffff,
        original,
        ..ReadResource::default()
    };
    remember(x, one);
    Ok(())
}
