//! Two ends of a connection with payload, memory and a clock, but no adapter, for tests of the rows of the conformance
//! table.

use crate::transport::{
    AckTimer, Congestion, Dcqcn, Event, Kind, Message, Order, Packet, ReadResource, Refusal, Request,
    Requester, Requests, Responder, Responses, Rights, Status, Timer, access, acknowledge,
    acknowledgement_timeout, answer, answered, deliver, next_reply, read_response, refuse_reply, replied,
    request, start_timer,
};
use hwspec::{
    handle::Psn,
    layout::Bits,
    wire::{AtomicEth, Bth, BthOpcode, NakCode, Operation, Reth},
};
use std::collections::VecDeque;

/// Path MTU.
pub(super) const MTU: u32 = 256;
/// Start, length and key of the memory of an end, for its peer.
pub(super) const VA: u64 = 0x1_0000;
pub(super) const LEN: usize = 4096;
pub(super) const KEY: u32 = 0x77;
/// The first PSN, unless a test sets another.
pub(super) const FIRST: u32 = 100;
pub(super) const MS: u64 = 1_000_000_000;

/// A complete packet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pkt {
    pub opcode: BthOpcode,
    pub psn: u32,
    pub ask: bool,
    /// Address, key and length.
    pub reth: Option<(u64, u32, u32)>,
    /// Address, key, swap or add operand, compare operand.
    pub atomic: Option<(u64, u32, u64, u64)>,
    pub imm: bool,
    pub payload: Vec<u8>,
    /// Syndrome and MSN.
    pub aeth: Option<(u8, u32)>,
    pub original: u64,
}

impl Pkt {
    pub fn new(opcode: BthOpcode, psn: u32) -> Self {
        let (reth, atomic, aeth) = (None, None, None);
        Self { opcode, psn, ask: true, reth, atomic, imm: false, payload: Vec::new(), aeth, original: 0 }
    }

    pub fn with(mut self, len: usize) -> Self {
        self.payload = vec![0x5a; len];
        self
    }

    pub fn to(mut self, va: u64, key: u32, len: u32) -> Self {
        self.reth = Some((va, key, len));
        self
    }

    pub fn is_ack(&self) -> bool {
        self.opcode == BthOpcode::RcAck
    }

    /// PSN and syndrome of an acknowledge packet.
    pub fn ack(&self) -> (u32, u8) {
        assert!(self.is_ack(), "{self:?}");
        (self.psn, self.aeth.expect("an AETH").0)
    }
}

impl Packet for Pkt {
    fn bth(&self) -> Bth {
        Bth::with(|s| s.opcode(self.opcode).psn(Psn::new(self.psn)).ack_req(self.ask))
    }
    fn reth(&self) -> Option<Reth> {
        self.reth.map(|(va, rkey, len)| Reth::with(|s| s.va(va).rkey(rkey).dma_len(len)))
    }
    fn atomic(&self) -> Option<AtomicEth> {
        self.atomic.map(|(va, rkey, swap_add, compare)| {
            AtomicEth::with(|s| s.va(va).rkey(rkey).swap_add(swap_add).compare(compare))
        })
    }
    fn has_imm(&self) -> bool {
        self.imm
    }
    fn len(&self) -> u32 {
        self.payload.len() as u32
    }
    fn is_padded(&self) -> bool {
        true
    }
}

/// A request posted at an end.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub kind: Kind,
    pub va: u64,
    pub key: u32,
    pub len: u32,
    /// Payload of a SEND or WRITE.
    pub data: Vec<u8>,
    /// The swap or add operand, and the compare operand.
    pub operands: [u64; 2],
}

impl Post {
    fn new(kind: Kind, va: u64, len: u32) -> Self {
        let data = (0..len).map(|i| i as u8).collect();
        Self { kind, va, key: KEY, len, data, operands: [0; 2] }
    }
    pub fn send(len: u32) -> Self {
        Self::new(Kind::Send, 0, len)
    }
    pub fn write(at: u64, len: u32) -> Self {
        Self::new(Kind::Write, VA + at, len)
    }
    pub fn read(at: u64, len: u32) -> Self {
        Self::new(Kind::Read, VA + at, len)
    }
    pub fn add(at: u64, n: u64) -> Self {
        Self { operands: [n, 0], ..Self::new(Kind::FetchAdd, VA + at, 8) }
    }
    pub fn swap(at: u64, from: u64, to: u64) -> Self {
        Self { operands: [to, from], ..Self::new(Kind::CompareSwap, VA + at, 8) }
    }
}

/// One end of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct End {
    pub now: u64,
    pub requester: Requester,
    pub posted: Vec<Post>,
    requests: Vec<Request>,
    /// Number of packets of a message after which an acknowledgement is requested.
    pub ask_every: u32,
    /// Completed requests, by number.
    pub completed: Vec<(u32, Option<Status>)>,
    /// The data returned by READs and atomics, by number.
    pub brought: Vec<(u32, Vec<u8>)>,
    pub congestion: Congestion,
    dcqcn: Dcqcn,
    pub responder: Responder,
    pub resources: [ReadResource; ReadResource::PER_QP],
    /// PSN of each packet of a SEND or WRITE that was executed, and its offset in the receive or its address.
    pub executed: Vec<(u32, u64)>,
    pub memory: Vec<u8>,
    /// The peer's rights to memory, by [`KEY`].
    pub granted: Rights,
    /// False once the memory that READs refer to is unmapped.
    pub is_there: bool,
    /// Lengths of the posted receives.
    pub receives: Vec<u32>,
    /// Bytes received in each receive.
    pub received: Vec<u32>,
    pub events: Vec<Event>,
    /// Set when the connection ended because of a request.
    pub refused: Option<(NakCode, Option<Status>)>,
}

impl End {
    pub fn new(psn: u32) -> Self {
        let mut requester =
            Requester { retry_count: 7, rnr_retry: 7, ack_timeout: 14, log_reads: 2, ..Requester::default() };
        requester.begin(psn);
        requester.reload();
        let mut responder = Responder { min_rnr_nak: 12, log_resources: 2, ..Responder::default() };
        responder.begin(psn);
        responder.allow(Rights::all(), true);
        Self {
            now: 1,
            requester,
            ask_every: 4,
            responder,
            memory: vec![0; LEN],
            granted: Rights::all(),
            is_there: true,
            ..Self::default()
        }
    }

    pub fn has_ended(&self) -> bool {
        self.refused.is_some() || self.failure().is_some()
    }

    /// The reason why the connection failed.
    pub fn failure(&self) -> Option<Status> {
        self.completed.iter().find_map(|(_, status)| *status)
    }

    /// Number of requests that succeeded.
    pub fn succeeded(&self) -> usize {
        self.completed.iter().filter(|(_, status)| status.is_none()).count()
    }

    pub fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.memory[at..at + 8].try_into().expect("eight bytes"))
    }

    fn place(&self, key: u32, va: u64, len: u64, rights: Rights) -> Option<usize> {
        let at = va.checked_sub(VA)?;
        (key == KEY && self.granted.contains(rights) && at + len <= self.memory.len() as u64)
            .then_some(at as usize)
    }

    /// Receives a packet.
    pub fn take(&mut self, packet: &Pkt) {
        if self.has_ended() {
            return;
        }
        let psn = Psn::new(packet.psn);
        match packet.opcode.operation() {
            Some(Operation::Ack) => {
                let syndrome = Bits::from_bits(packet.aeth.expect("an AETH").0.into());
                answer(self, psn, |end| acknowledge(end, psn, syndrome));
            }
            Some(Operation::ReadResponse) => _ = answer(self, psn, |end| end.read_response(packet, psn)),
            Some(Operation::AtomicAck) => {
                answer(self, psn, |end| {
                    if let Some((at, _)) = answered(end, psn, false) {
                        end.brought.push((at, packet.original.to_le_bytes().to_vec()));
                        deliver(end, psn, None);
                    }
                });
            }
            _ => request(self, packet),
        }
    }

    fn read_response(&mut self, packet: &Pkt, psn: Psn) {
        let shape = (packet.len(), packet.opcode.is_last(), true);
        if let Some((at, _)) = read_response(self, psn, MTU, shape) {
            self.brought.push((at, packet.payload.clone()));
            deliver(self, psn, None);
        }
    }

    /// The packets that are sent now.
    pub fn transmit(&mut self) -> Vec<Pkt> {
        let answers: Vec<Pkt> = std::iter::from_fn(|| self.next_answer()).collect();
        answers.into_iter().chain(std::iter::from_fn(|| self.next_request())).collect()
    }

    /// The next packet of a request, if one may be sent.
    pub fn next_request(&mut self) -> Option<Pkt> {
        if !self.may_send() {
            return None;
        }
        if let Some(request) = self.startable().filter(|_| !self.requester.has_unsent()) {
            self.requests.push(request);
            self.requester.take();
            self.requester.number(&request);
        }
        Some(self.send_request(self.requester.send))
    }

    /// True if a packet of a request may be sent.
    pub fn may_send(&self) -> bool {
        let more = self.requester.has_unsent() || self.startable().is_some();
        more && !self.has_ended() && !self.requester.waits_rnr()
    }

    /// The next posted request, if it may start.
    fn startable(&self) -> Option<Request> {
        let work = self.posted.get(self.requester.tail as usize)?;
        let packets = work.kind.packets(work.len, MTU);
        let admitted =
            self.requester.has_room() && self.requester.admits(Some(work.kind), packets, Order::None);
        let (psn, kind) = (self.requester.psn, work.kind as u8);
        admitted.then_some(Request { psn, packets, length: work.len, kind, ..Request::default() })
    }

    fn send_request(&mut self, at: u32) -> Pkt {
        let (one, work) = (self.requests[at as usize], self.posted[at as usize].clone());
        let kind = work.kind;
        if kind.is_answered() {
            let (psn, skip) = self.requester.next_request_packet(&one, MTU);
            let mut packet = Pkt::new(kind.opcode(true, true), psn.get());
            if kind == Kind::Read {
                packet = packet.to(work.va + u64::from(skip), work.key, work.len - skip);
            } else {
                packet.atomic = Some((work.va, work.key, work.operands[0], work.operands[1]));
            }
            if self.requester.asked(&one) {
                start_timer(self);
            }
            return packet;
        }
        let next = self.requester.next_packet(&one, MTU, Some(self.ask_every));
        let bytes = work.data[next.from as usize..(next.from + next.len) as usize].to_vec();
        let opcode = kind.opcode(next.first, next.last);
        let mut packet = Pkt { ask: next.ask, payload: bytes, ..Pkt::new(opcode, next.psn.get()) };
        packet.imm = next.last && matches!(kind, Kind::SendImm | Kind::WriteImm);
        if kind.is_write() && next.first {
            packet = packet.to(work.va, work.key, work.len);
        }
        if self.requester.sent(&next) {
            start_timer(self);
        }
        packet
    }

    /// The next response to a READ or an atomic, or else the acknowledgement that is owed.
    pub fn next_answer(&mut self) -> Option<Pkt> {
        if self.has_ended() {
            return None;
        }
        if let Some(reply) = next_reply(self) {
            let one = reply.resource;
            let place = match reply.len {
                0 => Some(0),
                len => self.place(one.rkey, one.va + u64::from(reply.from), len.into(), Rights::READ),
            };
            if let Some(place) = place {
                let payload = self.memory[place..place + reply.len as usize].to_vec();
                let aeth = (reply.opcode != BthOpcode::RcReadRespMiddle).then_some((0x1f, one.msn));
                replied(self, &reply, 1);
                let packet = Pkt::new(reply.opcode, reply.psn.get());
                return Some(Pkt { payload, aeth, original: one.original, ask: false, ..packet });
            }
            refuse_reply(self, &reply);
        }
        if !self.responder.owes_ack() {
            return None;
        }
        let (psn, syndrome, ends) = self.responder.take_ack();
        let aeth = Some((syndrome.into_bits() as u8, self.responder.msn));
        if ends {
            self.end();
        }
        Some(Pkt { aeth, ask: false, ..Pkt::new(BthOpcode::RcAck, psn) })
    }

    /// The next time at which a timer expires.
    pub fn deadline(&self) -> Option<u64> {
        self.requester.timers.pending().map(|(_, at)| at).min()
    }

    pub fn look_at_clock(&mut self) {
        let due = |timer| self.requester.timers.is_due(timer, self.now);
        let (acknowledgement, rnr) = (due(Timer::Ack), due(Timer::Rnr));
        if rnr {
            self.requester.rnr_timeout();
        }
        if acknowledgement {
            acknowledgement_timeout(self, |_| false);
        }
    }
}

impl Requests for End {
    fn requester(&self) -> &Requester {
        &self.requester
    }
    fn requester_mut(&mut self) -> &mut Requester {
        &mut self.requester
    }
    fn request(&self, at: u32) -> Request {
        self.requests[at as usize]
    }
    fn is_sending(&self) -> bool {
        !End::has_ended(self)
    }
    fn has_ended(&self) -> bool {
        End::has_ended(self)
    }
    fn now(&self) -> u64 {
        self.now
    }
    fn ack_timer(&self) -> AckTimer {
        AckTimer { least: 0, hundredths: [100; 3] }
    }
    fn congestion(&mut self) -> (&mut Congestion, &Dcqcn) {
        (&mut self.congestion, &self.dcqcn)
    }
    fn complete(&mut self, at: u32, _: Option<&[u8; 32]>) -> bool {
        self.completed.push((at, None));
        true
    }
    fn fail(&mut self, at: u32, status: Option<Status>) {
        self.completed.push((at, status));
        self.requester.stop();
    }
    fn acknowledged(&mut self) {}
    fn note(&mut self, event: Event) {
        self.events.push(event);
    }
}

impl Responses for End {
    type Packet<'p> = Pkt;
    /// An offset in memory.
    type Word = usize;

    fn responder(&self) -> &Responder {
        &self.responder
    }
    fn responder_mut(&mut self) -> &mut Responder {
        &mut self.responder
    }
    fn resource(&self, at: u32) -> ReadResource {
        self.resources[at as usize % ReadResource::PER_QP]
    }
    fn resource_mut(&mut self, at: u32) -> &mut ReadResource {
        &mut self.resources[at as usize % ReadResource::PER_QP]
    }
    fn mtu(&self) -> u32 {
        MTU
    }
    fn target(&self) -> u32 {
        0
    }
    fn guarded(&mut self, execute: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> Result<(), Refusal> {
        execute(self)
    }
    fn take_receive(&mut self) -> Option<u32> {
        let next = self.received.len();
        (next < self.receives.len()).then_some(next as u32)
    }
    fn abort_receive(&mut self) {}
    fn receive(&mut self, packet: &Pkt) -> Result<(), Refusal> {
        if self.responder.rx.done + packet.len() > self.receives[self.responder.rx.receive as usize] {
            return Err(Refusal::LENGTH);
        }
        self.executed.push((packet.psn, self.responder.rx.done.into()));
        self.responder.rx.done += packet.len();
        if packet.opcode.is_last() {
            self.received.push(self.responder.rx.done);
            self.responder.finish_message();
        }
        Ok(())
    }
    fn reaches(&self, rkey: u32, va: u64, len: u32, right: Rights) -> bool {
        self.place(rkey, va, len.into(), right).is_some()
    }
    fn is_there(&mut self, _: u32, _: u64, _: u32) -> bool {
        self.is_there
    }
    fn checks_ahead(&self) -> bool {
        true
    }
    fn write(&mut self, packet: &Pkt, message: &Message) -> Result<(), Refusal> {
        let va = message.va + u64::from(message.done);
        let Some(at) = self.place(message.rkey, va, packet.len().into(), Rights::WRITE) else {
            return Err(access(self));
        };
        self.executed.push((packet.psn, va));
        self.memory[at..at + packet.payload.len()].copy_from_slice(&packet.payload);
        Ok(())
    }
    fn complete_write(&mut self, _: &Pkt, _: u32, message: &Message) -> Result<(), Refusal> {
        self.received.push(message.length);
        self.responder.finish_message();
        Ok(())
    }
    fn locate(&mut self, eth: &AtomicEth) -> Option<usize> {
        self.place(eth.rkey(), eth.va(), 8, Rights::ATOMIC)
    }
    fn modify(&mut self, at: usize, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Refusal> {
        let old = self.word(at);
        if let Some(new) = change(old) {
            self.memory[at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
        Ok(old)
    }
    fn end(&mut self) {
        self.refused = Some(self.responder.refusal());
        self.responder.stop();
    }
    fn note(&mut self, event: Event) {
        self.events.push(event);
    }
}

/// A predicate that selects packets.
type Look = fn(&Pkt) -> bool;

/// Two ends: requests go from the first to the second.
pub(super) struct Pair {
    pub ours: End,
    pub theirs: End,
    /// All packets sent by us and by them, lost or not.
    pub sent: [Vec<Pkt>; 2],
    /// Number of packets still to be lost that match the predicate.
    lost: Vec<(usize, Look)>,
}

impl Pair {
    pub fn new() -> Self {
        Self::from(FIRST)
    }

    /// Creates a pair with the given first PSN.
    pub fn from(psn: u32) -> Self {
        Self { ours: End::new(psn), theirs: End::new(psn), sent: Default::default(), lost: Vec::new() }
    }

    /// The peer posts receives of `len` bytes.
    pub fn receives(mut self, count: usize, len: u32) -> Self {
        self.theirs.receives.extend(std::iter::repeat_n(len, count));
        self
    }

    pub fn post(&mut self, work: impl IntoIterator<Item = Post>) {
        self.ours.posted.extend(work);
    }

    /// Posts requests and runs until nothing more happens.
    pub fn run(&mut self, work: impl IntoIterator<Item = Post>) {
        self.post(work);
        self.settle();
    }

    /// Loses the next `count` packets that match `look`.
    pub fn lose(&mut self, count: usize, look: Look) {
        self.lost.push((count, look));
    }

    fn loses(&mut self, packet: &Pkt) -> bool {
        let due = self.lost.iter_mut().find(|(left, look)| *left > 0 && look(packet));
        due.map(|(left, _)| *left -= 1).is_some()
    }

    /// Exchanges packets until neither end sends any without a timer.
    pub fn settle(&mut self) {
        let mut wire: VecDeque<(bool, Pkt)> = VecDeque::new();
        for _ in 0..100_000 {
            for (side, end) in [&mut self.ours, &mut self.theirs].into_iter().enumerate() {
                for packet in end.transmit() {
                    self.sent[side].push(packet.clone());
                    wire.push_back((side == 0, packet));
                }
            }
            let Some((to_them, packet)) = wire.pop_front() else { return };
            if !self.loses(&packet) {
                if to_them { self.theirs.take(&packet) } else { self.ours.take(&packet) }
            }
        }
        panic!("no end to what is sent");
    }

    /// Advances time to our next timer and runs everything that follows; returns the time that passed.
    pub fn wait(&mut self) -> u64 {
        let at = self.ours.deadline().expect("a timer runs");
        let passed = at - self.ours.now;
        (self.ours.now, self.theirs.now) = (at, at);
        self.ours.look_at_clock();
        self.settle();
        passed
    }

    /// Delivers a forged packet to the peer and returns its response.
    pub fn ask(&mut self, packet: &Pkt) -> Vec<Pkt> {
        self.theirs.take(packet);
        self.theirs.transmit()
    }

    /// Like [`ask`](Self::ask); returns PSN and syndrome of the single acknowledge packet in the response.
    pub fn ask_ack(&mut self, packet: &Pkt) -> (u32, u8) {
        match &self.ask(packet)[..] {
            [one] => one.ack(),
            other => panic!("expected one acknowledge packet, found {other:?}"),
        }
    }

    /// Delivers a forged acknowledge packet to us and returns our response.
    pub fn tell_ack(&mut self, psn: u32, syndrome: u8) -> Vec<Pkt> {
        self.ours.take(&Pkt { aeth: Some((syndrome, 0)), ..Pkt::new(BthOpcode::RcAck, psn) });
        self.ours.transmit()
    }
}
