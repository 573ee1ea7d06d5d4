//! Two endpoints of a reliable connection and the packets between them.
//!
//! The requester sends messages to the responder, and the responder's program posts receives. The joint state is small
//! and complete; a [`Step`] is a possible next event. Time is logical: a running timer may expire at any moment. A
//! delayed packet is one that is overtaken by other steps.

use crate::transport::{
    AckTimer, Congestion, Dcqcn, Event, Kind, Message, Order, Packet, ReadResource, Refusal, Request,
    Requester, Requests, Responder, Responses, Rights, Status, Timer, acknowledge, acknowledgement_timeout,
    answer, deliver, next_reply, read_response, replied, request, start_timer,
};
use hwspec::{
    handle::Psn,
    layout::Bits,
    wire::{AtomicEth, Bth, BthOpcode, Reth},
};
use zerocopy::IntoBytes;

/// Path MTU.
pub(super) const MTU: u32 = 256;
/// Maximum number of packets in flight in one direction: further packets are sent later.
const IN_FLIGHT: usize = 3;

/// Bytes between the addresses of two messages at the responder.
const APART: u64 = 1 << 20;
const KEY: u32 = 7;

/// The address that message `message` writes to or reads from.
fn address(message: u8) -> u64 {
    u64::from(message) * APART
}

/// A request packet; the message and the position in it represent the payload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Data {
    opcode: u8,
    psn: u32,
    ask: bool,
    len: u32,
    message: u8,
    place: u8,
    /// Address and length of its RETH, if it has one.
    reth: Option<(u64, u32)>,
}

impl Packet for Data {
    fn bth(&self) -> Bth {
        Bth::with(|s| s.opcode(BthOpcode::from_raw(self.opcode)).psn(Psn::new(self.psn)).ack_req(self.ask))
    }
    fn reth(&self) -> Option<Reth> {
        self.reth.map(|(va, len)| Reth::with(|s| s.va(va).rkey(KEY).dma_len(len)))
    }
    fn atomic(&self) -> Option<AtomicEth> {
        None
    }
    fn has_imm(&self) -> bool {
        false
    }
    fn len(&self) -> u32 {
        self.len
    }
    fn is_padded(&self) -> bool {
        true
    }
}

/// A packet from the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Back {
    /// PSN and AETH syndrome.
    Ack(u32, u8),
    /// PSN, opcode, and the address and length of its bytes.
    Response(u32, u8, u64, u32),
}

impl Back {
    fn psn(self) -> u32 {
        match self {
            Self::Ack(psn, _) | Self::Response(psn, ..) => psn,
        }
    }
}

/// The initial settings of an exploration.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Operation and length in bytes of each message.
    pub messages: &'static [(Kind, u32)],
    pub first_psn: u32,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// Receives posted before the first packet; the others are posted at any time.
    pub receives: u8,
    /// Total number of packets that may be lost, and copied.
    pub losses: u8,
    pub copies: u8,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    SendPacket,
    SendAnswer,
    PostReceive,
    AckTimer,
    RnrTimer,
    DataArrives(usize),
    DataIsLost(usize),
    DataIsCopied(usize),
    AnswerArrives(usize),
    AnswerIsLost(usize),
    AnswerIsCopied(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    scenario: Scenario,
    requester: Requester,
    requests: Vec<Request>,
    responder: Responder,
    resources: Vec<ReadResource>,
    data: Vec<Data>,
    answers: Vec<Back>,
    receives: u8,
    losses: u8,
    copies: u8,
    /// Next position of the message being received, and of the READ being answered.
    place: u8,
    read: u8,
    /// SENDs and WRITEs completed at the responder, READs completed at the requester.
    pub delivered: Vec<u8>,
    pub fetched: Vec<u8>,
    pub completed: Vec<u8>,
    pub failed: Option<Status>,
    /// The responder ended the connection.
    pub refused: bool,
}

impl Endpoints {
    pub(super) fn new(scenario: Scenario) -> Self {
        let mut requester = Requester {
            retry_count: scenario.retry_count,
            rnr_retry: scenario.rnr_retry,
            ack_timeout: 14,
            ..Requester::default()
        };
        requester.begin(scenario.first_psn);
        requester.reload();
        let mut responder = Responder { min_rnr_nak: 12, ..Responder::default() };
        responder.begin(scenario.first_psn);
        responder.allow(Rights::READ | Rights::WRITE, true);
        Self {
            requester,
            requests: Vec::new(),
            responder,
            resources: Vec::new(),
            data: Vec::new(),
            answers: Vec::new(),
            receives: scenario.receives,
            losses: scenario.losses,
            copies: scenario.copies,
            place: 0,
            read: 0,
            delivered: Vec::new(),
            fetched: Vec::new(),
            completed: Vec::new(),
            failed: None,
            refused: false,
            scenario,
        }
    }

    /// All the parts in which two states can differ.
    pub(super) fn key(&self) -> Vec<u8> {
        let mut key = self.requester.as_bytes().to_vec();
        key.extend_from_slice(self.responder.as_bytes());
        key.extend([self.receives, self.losses, self.copies, self.place, self.read, u8::from(self.refused)]);
        key.extend([
            self.delivered.len() as u8,
            self.fetched.len() as u8,
            self.completed.len() as u8,
            self.failed.map_or(0, |s| s as u8),
        ]);
        for one in &self.data {
            key.extend_from_slice(&one.psn.to_le_bytes());
            // A PSN always identifies the same packet, except for AckReq.
            key.push(u8::from(one.ask));
        }
        key.push(0xff);
        for one in &self.answers {
            let (Back::Ack(psn, what) | Back::Response(psn, what, ..)) = *one;
            key.extend_from_slice(&psn.to_le_bytes());
            key.extend([what, u8::from(matches!(one, Back::Ack(..)))]);
        }
        key.push(0xff);
        self.resources.iter().for_each(|one| key.extend_from_slice(one.as_bytes()));
        key
    }

    /// True if every message was delivered and its sender knows, or the sender has given up.
    pub(super) fn is_over(&self) -> bool {
        self.failed.is_some() || self.completed.len() == self.scenario.messages.len()
    }

    fn owes_answer(&self) -> bool {
        self.responder.owes_answers() || self.responder.owes_ack()
    }

    /// Number of SENDs among the messages: each takes a receive.
    fn sends(&self) -> usize {
        self.scenario.messages.iter().filter(|(kind, _)| *kind == Kind::Send).count()
    }

    /// True if the next message may start.
    fn admits(&self) -> bool {
        let Some((kind, length)) = self.scenario.messages.get(self.requests.len()) else { return false };
        let packets = kind.packets(*length, MTU);
        self.requester.has_room() && self.requester.admits(Some(*kind), packets, Order::None)
    }

    /// The possible next steps.
    pub(super) fn steps(&self) -> Vec<Step> {
        if self.is_over() {
            return Vec::new();
        }
        let q = &self.requester;
        let mut steps = Vec::new();
        let more = q.has_unsent() || self.admits();
        let all = [
            (Step::SendPacket, more && !q.waits_rnr() && self.data.len() < IN_FLIGHT),
            (Step::SendAnswer, self.owes_answer() && self.answers.len() < IN_FLIGHT),
            (Step::PostReceive, usize::from(self.receives) < self.sends()),
            (Step::AckTimer, q.timers.runs(Timer::Ack)),
            (Step::RnrTimer, q.timers.runs(Timer::Rnr)),
        ];
        steps.extend(all.into_iter().filter_map(|(step, can)| can.then_some(step)));
        for i in (0..self.data.len()).filter(|i| *i == 0 || self.data[*i] != self.data[*i - 1]) {
            steps.push(Step::DataArrives(i));
            steps.extend((self.losses > 0).then_some(Step::DataIsLost(i)));
            steps.extend((self.copies > 0).then_some(Step::DataIsCopied(i)));
        }
        for i in (0..self.answers.len()).filter(|i| *i == 0 || self.answers[*i] != self.answers[*i - 1]) {
            steps.push(Step::AnswerArrives(i));
            steps.extend((self.losses > 0).then_some(Step::AnswerIsLost(i)));
            steps.extend((self.copies > 0).then_some(Step::AnswerIsCopied(i)));
        }
        steps
    }

    /// The state after `step`.
    pub(super) fn after(&self, step: Step) -> Self {
        let mut w = self.clone();
        match step {
            Step::SendPacket => w.send_packet(),
            Step::SendAnswer => w.send_answer(),
            Step::PostReceive => w.receives += 1,
            Step::AckTimer => {
                acknowledgement_timeout(&mut w, |_| false);
            }
            Step::RnrTimer => w.requester.rnr_timeout(),
            Step::DataArrives(i) => {
                let packet = w.data.remove(i);
                request(&mut w, &packet);
            }
            Step::DataIsLost(i) => {
                w.data.remove(i);
                w.losses -= 1;
            }
            Step::DataIsCopied(i) => {
                w.data.push(w.data[i].clone());
                w.copies -= 1;
            }
            Step::AnswerArrives(i) => {
                let one = w.answers.remove(i);
                let psn = Psn::new(one.psn());
                answer(&mut w, psn, |w| match one {
                    Back::Ack(_, syndrome) => acknowledge(w, psn, Bits::from_bits(syndrome.into())),
                    Back::Response(_, opcode, at, len) => w.take_response(psn, opcode, at, len),
                });
            }
            Step::AnswerIsLost(i) => {
                w.answers.remove(i);
                w.losses -= 1;
            }
            Step::AnswerIsCopied(i) => {
                w.answers.push(w.answers[i]);
                w.copies -= 1;
            }
        }
        w.data.sort_unstable();
        w.answers.sort_unstable();
        w
    }

    fn send_packet(&mut self) {
        if !self.requester.has_unsent() {
            let (kind, length) = self.scenario.messages[self.requests.len()];
            let (psn, packets) = (self.requester.psn, kind.packets(length, MTU));
            let one = Request { psn, packets, length, kind: kind as u8, ..Request::default() };
            self.requests.push(one);
            self.requester.take();
            self.requester.number(&one);
        }
        let message = self.requester.send as u8;
        let one = self.requests[usize::from(message)];
        let starts_timer = match one.kind() {
            Kind::Read => self.send_read(&one, message),
            kind => self.send_data(&one, kind, message),
        };
        if starts_timer {
            start_timer(self);
        }
    }

    /// Sends a packet of a SEND or WRITE.
    fn send_data(&mut self, one: &Request, kind: Kind, message: u8) -> bool {
        let packet = self.requester.next_packet(one, MTU, Some(2));
        self.data.push(Data {
            opcode: kind.opcode(packet.first, packet.last).raw(),
            psn: packet.psn.get(),
            ask: packet.ask,
            len: packet.len,
            message,
            place: (packet.from / MTU) as u8,
            reth: (kind.is_write() && packet.first).then_some((address(message), one.length)),
        });
        self.requester.sent(&packet)
    }

    /// Sends a READ request, from the current position of its responses.
    fn send_read(&mut self, one: &Request, message: u8) -> bool {
        let (psn, skip) = self.requester.next_request_packet(one, MTU);
        self.data.push(Data {
            opcode: Kind::Read.opcode(true, true).raw(),
            psn: psn.get(),
            ask: true,
            len: 0,
            message,
            place: 0,
            reth: Some((address(message) + u64::from(skip), one.length - skip)),
        });
        self.requester.asked(one)
    }

    /// Responses are sent before the acknowledgement.
    fn send_answer(&mut self) {
        if let Some(reply) = next_reply(self) {
            let at = reply.resource.va + u64::from(reply.from);
            self.answers.push(Back::Response(reply.psn.get(), reply.opcode.raw(), at, reply.len));
            replied(self, &reply, 1);
        } else if self.responder.owes_ack() {
            let (psn, syndrome, ends) = self.responder.take_ack();
            self.answers.push(Back::Ack(psn, syndrome.into_bits() as u8));
            self.refused |= ends;
        }
    }

    /// Takes a READ response and checks that it carries the expected bytes.
    fn take_response(&mut self, psn: Psn, opcode: u8, at: u64, len: u32) {
        let last = BthOpcode::from_raw(opcode).is_last();
        let Some((message, from)) = read_response(self, psn, MTU, (len, last, true)) else { return };
        assert_eq!(at, address(message as u8) + u64::from(from), "the bytes that were asked for");
        assert_eq!(from, u32::from(self.read) * MTU, "responses of a READ in order");
        self.read += 1;
        if last {
            self.fetched.push(message as u8);
            self.read = 0;
        }
        deliver(self, psn, None);
    }

    /// Places a packet of a SEND or WRITE.
    fn place(&mut self, packet: &Data) {
        assert_eq!(packet.place, self.place, "packets of a message in order");
        self.place += 1;
        if packet.bth().opcode().is_last() {
            self.delivered.push(packet.message);
            self.place = 0;
        }
    }
}

impl Requests for Endpoints {
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
        self.failed.is_none()
    }
    fn has_ended(&self) -> bool {
        self.failed.is_some()
    }
    fn now(&self) -> u64 {
        1
    }
    fn ack_timer(&self) -> AckTimer {
        AckTimer { least: 0, hundredths: [100; 3] }
    }
    fn congestion(&mut self) -> (&mut Congestion, &Dcqcn) {
        unreachable!("nobody marks packets")
    }
    fn complete(&mut self, at: u32, _: Option<&[u8; 32]>) -> bool {
        self.completed.push(at as u8);
        true
    }
    fn fail(&mut self, _: u32, status: Option<Status>) {
        assert_eq!(self.failed, None, "a connection ends once");
        self.failed = status;
    }
    fn acknowledged(&mut self) {}
    fn note(&mut self, _: Event) {}
}

impl Responses for Endpoints {
    type Packet<'p> = Data;
    type Word = ();

    fn responder(&self) -> &Responder {
        &self.responder
    }
    fn responder_mut(&mut self) -> &mut Responder {
        &mut self.responder
    }
    fn resource(&self, at: u32) -> ReadResource {
        self.resources[at as usize]
    }
    fn resource_mut(&mut self, at: u32) -> &mut ReadResource {
        if self.resources.len() == at as usize {
            self.resources.push(ReadResource::default());
        }
        &mut self.resources[at as usize]
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
        let sent = |message: &&u8| self.scenario.messages[usize::from(**message)].0 == Kind::Send;
        let next = self.delivered.iter().filter(sent).count() as u32;
        (next < self.receives.into()).then_some(next)
    }
    fn abort_receive(&mut self) {
        unreachable!("a reliable connection breaks off no message")
    }
    fn receive(&mut self, packet: &Data) -> Result<(), Refusal> {
        self.responder.rx.done += packet.len;
        self.place(packet);
        if packet.bth().opcode().is_last() {
            self.responder.finish_message();
        }
        Ok(())
    }
    fn reaches(&self, rkey: u32, _: u64, _: u32, _: Rights) -> bool {
        rkey == KEY
    }
    fn is_there(&mut self, _: u32, _: u64, _: u32) -> bool {
        true
    }
    fn checks_ahead(&self) -> bool {
        true
    }
    fn write(&mut self, packet: &Data, message: &Message) -> Result<(), Refusal> {
        let at = address(packet.message) + u64::from(packet.place) * u64::from(MTU);
        assert_eq!(message.va + u64::from(message.done), at, "bytes go where they were sent to");
        self.place(packet);
        Ok(())
    }
    fn complete_write(&mut self, _: &Data, _: u32, _: &Message) -> Result<(), Refusal> {
        unreachable!("no immediate data")
    }
    fn locate(&mut self, _: &AtomicEth) -> Option<()> {
        unreachable!("no atomics")
    }
    fn modify(&mut self, (): (), _: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Refusal> {
        unreachable!("no atomics")
    }
    fn end(&mut self) {
        self.refused = true;
    }
    fn note(&mut self, _: Event) {}
}
