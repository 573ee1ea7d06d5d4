//! The responder: executes requests in the order of their PSNs (IBTA 9.7.4).
//!
//! Checks follow the order of the specification: PSN, opcode sequence, rights of the connection, lengths, resources, keys. An invalid
//! request is answered with a NAK after all pending responses; the connection ends when the NAK is sent.

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
    /// The peer's access rights to local memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// The receive in use (SEND), by the number that [`Responses::take_receive`] returned.
    pub receive: u32,
    /// Bytes received so far.
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
    /// Next expected PSN.
    pub psn: u32,
    /// Messages completed, 24 bits.
    pub msn: u32,
    /// PSN of the next acknowledgement.
    pub ack_psn: u32,
    /// The pending acknowledgement for `ack_psn`: an AETH syndrome.
    pub ack_syndrome: u8,
    /// [`NAK_SENT`](Self::NAK_SENT), [`RNR_SENT`](Self::RNR_SENT), [`ACK_OWED`](Self::ACK_OWED).
    pub flags: u8,
    /// [`Rights`].
    pub rights: u8,
    /// With a pending fatal NAK: completion status of the receive in use, a [`Status`]; 0 is none.
    pub status: u8,
    /// Attribute: RNR NAK timer code.
    pub min_rnr_nak: u8,
    /// Attribute: log2 of the READs and atomics accepted.
    pub log_resources: u8,
    /// Padding.
    pub reserved: u16,
    /// READ and atomic resources: next place to fill, free-running; the place is the index modulo [`ReadResource::PER_QP`].
    pub tail: u32,
    /// Oldest resource with unsent responses, free-running.
    pub send: u32,
    /// Number of response packets of that resource that were sent.
    pub packet: u32,
    /// Limits the congestion notifications to the peer.
    pub notifier: Notifier,
    /// The message that is being received.
    pub rx: Message,
}

impl Responder {
    /// A sequence NAK was sent and the expected PSN has not arrived yet (IBTA 9.7.5.1.2).
    const NAK_SENT: u8 = 1;
    /// An RNR NAK was sent and its PSN has not arrived again yet.
    const RNR_SENT: u8 = 2;
    /// The acknowledgement for `ack_psn` is still to be sent.
    const ACK_OWED: u8 = 4;

    /// Starts with `psn` as the expected PSN.
    pub(crate) fn begin(&mut self, psn: u32) {
        (self.psn, self.ack_psn) = (psn, psn);
    }

    /// Grants or revokes a right.
    pub(crate) fn allow(&mut self, right: Rights, on: bool) {
        self.rights = if on { self.rights | right.bits() } else { self.rights & !right.bits() };
    }

    /// True if all of `rights` are granted.
    #[inline(always)]
    pub(crate) fn allows(&self, rights: Rights) -> bool {
        self.rights & rights.bits() == rights.bits()
    }

    /// Ends the connection: drops all pending responses.
    pub(crate) fn stop(&mut self) {
        self.flags &= !Self::ACK_OWED;
        self.send = self.tail;
    }

    /// True if an acknowledgement is pending.
    #[inline(always)]
    pub(crate) fn owes_ack(&self) -> bool {
        self.flags & Self::ACK_OWED != 0
    }

    /// True if responses to READs or atomics are pending.
    #[inline(always)]
    pub(crate) fn owes_answers(&self) -> bool {
        self.send != self.tail
    }

    /// True if a NAK that ends the connection is pending; later requests are ignored.
    #[inline(always)]
    pub(crate) fn is_refusing(&self) -> bool {
        self.owes_ack() && self.ack_syndrome > NAK
    }

    /// Schedules an acknowledgement with `syndrome` for `psn`.
    #[inline(always)]
    fn owe(&mut self, syndrome: u8, psn: u32) {
        self.flags |= Self::ACK_OWED;
        self.ack_syndrome = syndrome;
        self.ack_psn = psn;
    }

    /// Schedules an acknowledgement of all PSNs before the expected one.
    #[inline(always)]
    pub(super) fn owe_ack(&mut self) {
        self.owe(Syndrome::ACK.into_bits() as u8, Psn::new(self.psn).add(0xff_ffff).get());
    }

    /// Cancels the pending acknowledgement.
    #[inline(always)]
    fn owe_nothing(&mut self) {
        self.flags &= !Self::ACK_OWED;
    }

    /// Takes the pending acknowledgement: its PSN and syndrome. True if the connection ends with it.
    #[inline(always)]
    pub(crate) fn take_ack(&mut self) -> (u32, Syndrome, bool) {
        self.owe_nothing();
        (self.ack_psn, Syndrome::from_bits(self.ack_syndrome.into()), self.ack_syndrome > NAK)
    }

    /// Refuses the expected request with a fatal NAK; the receive in use completes with `status`.
    #[cold]
    pub(crate) fn refuse(&mut self, code: NakCode, status: Option<Status>) {
        self.refuse_at(self.psn, code, status);
    }

    /// Like [`refuse`](Self::refuse), at the PSN of a request that was already accepted.
    #[cold]
    pub(crate) fn refuse_at(&mut self, psn: u32, code: NakCode, status: Option<Status>) {
        self.status = Status::stored(status);
        self.owe(NAK | code.raw(), psn);
    }

    /// The reason why the connection ends: the NAK code and the completion status of the receive in use.
    pub(crate) fn refusal(&self) -> (NakCode, Option<Status>) {
        (NakCode::from_raw(self.ack_syndrome & 0x1f), Status::of_receive(self.status))
    }

    /// Finishes a message that was received completely.
    #[inline(always)]
    pub(crate) fn finish_message(&mut self) {
        self.rx = Message::default();
        self.msn = self.msn.wrapping_add(1) & 0xff_ffff;
    }

    /// Number of resources for READs and atomics.
    pub(super) fn resources(&self) -> u32 {
        (1u32 << (self.log_resources & 7)).min(ReadResource::PER_QP as u32)
    }
}

/// The reason why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Receiver not ready: the requester retries later.
    NotReady,
    /// A NAK that ends the connection, and the completion status of the receive in use.
    Fatal(NakCode, Option<Status>),
    /// The packet is treated as lost.
    Lost,
}
use Refusal::{Fatal, Lost, NotReady};

impl Refusal {
    /// The request is invalid.
    pub(crate) const INVALID: Self = Fatal(NakCode::InvalidRequest, None);
    /// The memory named by the request does not allow the access.
    pub(crate) const ACCESS: Self = Fatal(NakCode::RemoteAccess, None);
    /// The receive in use names memory that does not belong to its program.
    pub(crate) const PROTECTION: Self = Fatal(NakCode::RemoteOperational, Some(Status::LocalProtection));
    /// The message is longer than the receive (IBTA 9.7.4.1.6).
    pub(crate) const LENGTH: Self = Fatal(NakCode::InvalidRequest, Some(Status::LocalLength));
}

/// The transport's view of a received packet.
pub(crate) trait Packet {
    /// Its BTH.
    fn bth(&self) -> Bth;
    /// Target range of a WRITE, or source range of a READ.
    fn reth(&self) -> Option<Reth>;
    /// Operands of an atomic.
    fn atomic(&self) -> Option<AtomicEth>;
    /// True if immediate data follows the headers.
    fn has_imm(&self) -> bool;
    /// Bytes of payload, pad excluded.
    fn len(&self) -> u32;
    /// Number of packets in a [train]; otherwise 1.
    fn packets(&self) -> u32 {
        1
    }
    /// True if payload and pad together are whole words, as they must be (IBTA 9.2.4).
    fn is_padded(&self) -> bool;
}

/// The services that a responder needs from its environment.
pub(crate) trait Responses: Sized {
    /// A received packet.
    type Packet<'p>: Packet;
    /// The memory word of an atomic.
    type Word;

    /// The responder's row.
    fn responder(&self) -> &Responder;
    /// The responder's row, mutable.
    fn responder_mut(&mut self) -> &mut Responder;
    /// The resource at a free-running index.
    fn resource(&self, at: u32) -> ReadResource;
    /// The resource at a free-running index, mutable.
    fn resource_mut(&mut self, at: u32) -> &mut ReadResource;
    /// Path MTU in bytes.
    fn mtu(&self) -> u32;
    /// XRC: the SRQ named by the current request; otherwise 0.
    fn target(&self) -> u32;
    /// Runs `execute`. A shared receive taken for a packet that does not count is returned.
    fn guarded(&mut self, execute: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal>;
    /// Takes a receive, for a message that begins or that ends with immediate data. It counts as consumed when the message is complete.
    fn take_receive(&mut self) -> Option<u32>;
    /// Gives up the receive in use, because its message was aborted. A shared receive completes with an error, since later ones may
    /// already have been taken; any other is reused by the next message.
    fn abort_receive(&mut self);
    /// Places a packet of a SEND in the receive in use; the message's last packet completes the receive.
    fn receive(&mut self, packet: &Self::Packet<'_>) -> Result<(), Refusal>;
    /// True if `right` allows the peer to access these bytes of local memory.
    fn reaches(&self, rkey: u32, va: u64, len: u32, right: Rights) -> bool;
    /// True if the memory for the first packet of a response is present; called when the peer did not receive it.
    fn is_there(&mut self, rkey: u32, va: u64, len: u32) -> bool;
    /// True if the whole range of a WRITE is checked with its first packet, as specified; false if each packet's own range is.
    fn checks_ahead(&self) -> bool;
    /// Writes a packet of the WRITE `message` to memory.
    fn write(&mut self, packet: &Self::Packet<'_>, message: &Message) -> Result<(), Refusal>;
    /// Completes `receive` when a WRITE with immediate data is complete.
    fn complete_write(
        &mut self,
        packet: &Self::Packet<'_>,
        receive: u32,
        message: &Message,
    ) -> Result<(), Refusal>;
    /// Looks up the memory of an atomic, if the peer may access it.
    fn locate(&mut self, eth: &AtomicEth) -> Option<Self::Word>;
    /// Reads a word and replaces it with the result of `change`, if any.
    fn modify(&mut self, word: Self::Word, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Refusal>;
    /// Ends the connection because of a request, with the reason in [`Responder::refusal`].
    fn end(&mut self);
    /// Reports an event.
    fn note(&mut self, event: Event);
}

/// Handles a request packet.
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

/// Executes a train of full MIDDLEs at once. False, without any effect, if the packets must be handled one by one, because they are not
/// the expected ones or the last of them would not be executed.
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

/// Handles a request that was not executed; `before` is the message in progress and the flags before the request.
#[cold]
fn refused<X: Responses>(x: &mut X, refusal: Refusal, before: &(Message, u8)) {
    let q = x.responder_mut();
    match refusal {
        // As if the packet had never arrived; nothing depends on other changes to the row.
        Lost => (q.rx, q.flags) = *before,
        NotReady => {
            q.flags |= Responder::RNR_SENT;
            q.owe(RNR | q.min_rnr_nak & 0x1f, q.psn);
            x.note(Event::NoReceive);
        }
        Fatal(code, status) => q.refuse(code, status),
    }
}

/// Handles an in-sequence request of an unreliable connection. False if it is dropped.
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

/// IBTA 9.7.5.1.2: sends one NAK for a gap, and no more until the expected PSN arrives. After an RNR NAK all packets are dropped.
#[cold]
fn out_of_sequence<X: Responses>(x: &mut X) {
    x.note(Event::OutOfSequence);
    let q = x.responder_mut();
    if q.flags & (Responder::NAK_SENT | Responder::RNR_SENT) == 0 {
        q.flags |= Responder::NAK_SENT;
        q.owe(NAK, q.psn);
    }
}

/// Executes the packet with the expected PSN.
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

/// Executes an operation on local memory, which the connection must allow. False if its data response acknowledges it later.
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

/// IBTA 9.7.4.1.6: all packets except the last carry exactly the path MTU.
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
    // A WRITE with immediate data takes a receive only for its last packet, before that is executed.
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

/// The refusal for memory that does not allow the request.
#[cold]
pub(crate) fn access<X: Responses>(x: &mut X) -> Refusal {
    x.note(Event::AccessRefused);
    Refusal::ACCESS
}

/// True if the resources allow another READ or atomic (IBTA 9.7.4.1.3). Requests that were answered and are only replayed do not count.
fn has_resource<X: Responses>(x: &X) -> bool {
    let q = x.responder();
    let (under_way, resources) = (q.tail.wrapping_sub(q.send), q.resources());
    let open = |i: &u32| x.resource(q.send.wrapping_add(*i)).answered == 0;
    under_way < resources || (0..under_way).filter(open).count() < resources as usize
}

/// Remembers a READ or atomic until it is answered, and then for duplicates.
fn remember<X: Responses>(x: &mut X, one: ReadResource) {
    let q = x.responder_mut();
    if q.tail.wrapping_sub(q.send) as usize >= ReadResource::PER_QP {
        // Reuses the oldest place; its replay is dropped.
        q.send = q.send.wrapping_add(1);
        q.packet = 0;
    }
    let at = q.tail;
    q.tail = at.wrapping_add(1);
    q.psn = Psn::new(q.psn).add(one.packets).get();
    q.msn = one.msn;
    // The response acknowledges all earlier PSNs.
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

/// IBTA 9.4.5: executes an 8-byte compare-and-swap or fetch-and-add once; its result is kept for duplicates.
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
