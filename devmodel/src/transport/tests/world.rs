//! Two endpoints of a reliable connection and the packets between them.
//!
//! The requester sends messages to the responder, whose program posts receives. A state of the world is small and says all;
//! [`Step`]s are what can happen next. Time is logical: a deadline is either near, and then its timer may run out at any
//! moment, or there is none. A packet that is delayed is one that other steps go past.

use crate::transport::{
    AckTimer, Event, Kind, Message, Order, Packet, ReadResource, Refusal, Request, Requester, Requests,
    Responder, Responses, Rights, Status, Timer, acknowledge, acknowledgement_timeout, answer, request,
    start_timer,
};
use hwspec::{
    handle::Psn,
    wire::{AtomicEth, Bth, BthOpcode, Reth},
};
use zerocopy::IntoBytes;

/// Path MTU.
pub(super) const MTU: u32 = 256;
/// Packets on their way in one direction at most: what does not fit is sent later.
const IN_FLIGHT: usize = 3;

/// A packet of a SEND; the message and the place in it stand for the payload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Data {
    opcode: u8,
    psn: u32,
    ask: bool,
    len: u32,
    message: u8,
    place: u8,
}

impl Packet for Data {
    fn bth(&self) -> Bth {
        let mut bth = Bth::zeroed();
        bth.set().opcode(BthOpcode::from_raw(self.opcode)).psn(Psn::new(self.psn)).ack_req(self.ask);
        bth
    }
    fn reth(&self) -> Option<Reth> {
        None
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

/// An acknowledge packet: PSN and AETH syndrome.
pub(super) type Ack = (u32, u8);

/// What the world begins with.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    /// Bytes of each message.
    pub messages: &'static [u32],
    pub first_psn: u32,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// Receives posted before the first packet; the others are posted at any time.
    pub receives: u8,
    /// Packets that may be lost, and copied, altogether.
    pub losses: u8,
    pub copies: u8,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    SendPacket,
    SendAck,
    PostReceive,
    AckTimer,
    RnrTimer,
    DataArrives(usize),
    DataIsLost(usize),
    DataIsCopied(usize),
    AckArrives(usize),
    AckIsLost(usize),
    AckIsCopied(usize),
}

#[derive(Clone, Debug)]
pub(super) struct World {
    scene: Scene,
    requester: Requester,
    requests: Vec<Request>,
    responder: Responder,
    data: Vec<Data>,
    acks: Vec<Ack>,
    receives: u8,
    losses: u8,
    copies: u8,
    /// Next place of the message under reception.
    place: u8,
    pub delivered: Vec<u8>,
    pub completed: Vec<u8>,
    pub failed: Option<Status>,
    /// The responder ended the connection.
    pub refused: bool,
}

impl World {
    pub(super) fn new(scene: Scene) -> Self {
        let mut requester = Requester {
            retry_count: scene.retry_count,
            rnr_retry: scene.rnr_retry,
            ack_timeout: 14,
            ..Requester::default()
        };
        requester.begin(scene.first_psn);
        requester.reload();
        let mut responder = Responder { min_rnr_nak: 12, ..Responder::default() };
        responder.begin(scene.first_psn);
        Self {
            requester,
            requests: Vec::new(),
            responder,
            data: Vec::new(),
            acks: Vec::new(),
            receives: scene.receives,
            losses: scene.losses,
            copies: scene.copies,
            place: 0,
            delivered: Vec::new(),
            completed: Vec::new(),
            failed: None,
            refused: false,
            scene,
        }
    }

    /// All that two states can differ in.
    pub(super) fn key(&self) -> Vec<u8> {
        let mut key = self.requester.as_bytes().to_vec();
        key.extend_from_slice(self.responder.as_bytes());
        key.extend([self.receives, self.losses, self.copies, self.place, u8::from(self.refused)]);
        key.extend([
            self.delivered.len() as u8,
            self.completed.len() as u8,
            self.failed.map_or(0, |s| s as u8),
        ]);
        for one in &self.data {
            key.extend_from_slice(&one.psn.to_le_bytes());
            // What a PSN stands for is always the same, but for whether it asks.
            key.push(u8::from(one.ask));
        }
        key.push(0xff);
        for (psn, syndrome) in &self.acks {
            key.extend_from_slice(&psn.to_le_bytes());
            key.push(*syndrome);
        }
        key
    }

    /// Whether every message is where it belongs and its sender knows, or the sender was told that it may not be.
    pub(super) fn is_over(&self) -> bool {
        self.failed.is_some() || self.completed.len() == self.scene.messages.len()
    }

    /// What can happen next.
    pub(super) fn steps(&self) -> Vec<Step> {
        if self.is_over() {
            return Vec::new();
        }
        let q = &self.requester;
        let mut steps = Vec::new();
        let more = q.has_unsent() || self.requests.len() < self.scene.messages.len();
        let all = [
            (Step::SendPacket, more && q.may_send(1) && self.data.len() < IN_FLIGHT),
            (Step::SendAck, self.responder.owes_ack() && self.acks.len() < IN_FLIGHT),
            (Step::PostReceive, usize::from(self.receives) < self.scene.messages.len()),
            (Step::AckTimer, q.timers.runs(Timer::Ack)),
            (Step::RnrTimer, q.timers.runs(Timer::Rnr)),
        ];
        steps.extend(all.into_iter().filter_map(|(step, can)| can.then_some(step)));
        for i in (0..self.data.len()).filter(|i| *i == 0 || self.data[*i] != self.data[*i - 1]) {
            steps.push(Step::DataArrives(i));
            steps.extend((self.losses > 0).then_some(Step::DataIsLost(i)));
            steps.extend((self.copies > 0).then_some(Step::DataIsCopied(i)));
        }
        for i in (0..self.acks.len()).filter(|i| *i == 0 || self.acks[*i] != self.acks[*i - 1]) {
            steps.push(Step::AckArrives(i));
            steps.extend((self.losses > 0).then_some(Step::AckIsLost(i)));
            steps.extend((self.copies > 0).then_some(Step::AckIsCopied(i)));
        }
        steps
    }

    /// The world after `step`.
    pub(super) fn after(&self, step: Step) -> Self {
        let mut w = self.clone();
        match step {
            Step::SendPacket => w.send_packet(),
            Step::SendAck => {
                let (psn, syndrome, ends) = w.responder.take_ack();
                w.acks.push((psn, hwspec::layout::Bits::into_bits(syndrome) as u8));
                w.refused |= ends;
            }
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
            Step::AckArrives(i) => {
                let (psn, syndrome) = w.acks.remove(i);
                let (psn, syndrome) = (Psn::new(psn), hwspec::layout::Bits::from_bits(syndrome.into()));
                answer(&mut w, psn, |w| acknowledge(w, psn, syndrome));
            }
            Step::AckIsLost(i) => {
                w.acks.remove(i);
                w.losses -= 1;
            }
            Step::AckIsCopied(i) => {
                w.acks.push(w.acks[i]);
                w.copies -= 1;
            }
        }
        w.data.sort_unstable();
        w.acks.sort_unstable();
        w
    }

    fn send_packet(&mut self) {
        if !self.requester.has_unsent() {
            let length = self.scene.messages[self.requests.len()];
            let packets = Kind::Send.packets(length, MTU);
            assert!(
                self.requester.has_room() && self.requester.admits(Some(Kind::Send), packets, Order::None)
            );
            let psn = self.requester.psn;
            let one = Request { psn, packets, length, kind: Kind::Send as u8, ..Request::default() };
            self.requests.push(one);
            self.requester.take();
            self.requester.number(&one);
        }
        let message = self.requester.send;
        let one = self.requests[message as usize];
        let packet = self.requester.next_packet(&one, MTU, Some(2));
        self.data.push(Data {
            opcode: one.kind().opcode(packet.first, packet.last).raw(),
            psn: packet.psn.get(),
            ask: packet.ask,
            len: packet.len,
            message: message as u8,
            place: (packet.from / MTU) as u8,
        });
        if self.requester.sent(&packet) {
            start_timer(self);
        }
    }
}

impl Requests for World {
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
        AckTimer { least: 0, hundredths: 100 }
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

impl Responses for World {
    type Packet<'p> = Data;
    type Word = ();

    fn responder(&self) -> &Responder {
        &self.responder
    }
    fn responder_mut(&mut self) -> &mut Responder {
        &mut self.responder
    }
    fn resource(&self, _: u32) -> ReadResource {
        unreachable!("no READs")
    }
    fn resource_mut(&mut self, _: u32) -> &mut ReadResource {
        unreachable!("no READs")
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
        let next = self.delivered.len() as u32;
        (next < self.receives.into()).then_some(next)
    }
    fn abort_receive(&mut self) {
        unreachable!("a reliable connection breaks off no message")
    }
    fn receive(&mut self, packet: &Data) -> Result<(), Refusal> {
        assert_eq!(packet.place, self.place, "packets of a message in order");
        self.responder.rx.done += packet.len;
        self.place += 1;
        if packet.bth().opcode().is_last() {
            self.delivered.push(packet.message);
            self.responder.finish_message();
            self.place = 0;
        }
        Ok(())
    }
    fn reaches(&self, _: u32, _: u64, _: u32, _: Rights) -> bool {
        false
    }
    fn checks_ahead(&self) -> bool {
        true
    }
    fn write(&mut self, _: &Data, _: &Message) -> Result<(), Refusal> {
        unreachable!("no WRITEs")
    }
    fn complete_write(&mut self, _: &Data, _: u32, _: &Message) -> Result<(), Refusal> {
        unreachable!("no WRITEs")
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
