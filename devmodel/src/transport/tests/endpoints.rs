//! Two endpoints of a reliable connection and the packets between them.
//!
//! The requester sends messages to the responder, and the responder's program posts receives. The joint state is small
//! and complete; a [`Step`] is a possible next event. Time is logical: a running timer may expire at any moment. A
//! delayed packet is one that is overtaken by other steps.

use super::pair::{End, MTU, Pkt, Post, VA};
use crate::transport::{Kind, Status, Timer, acknowledgement_timeout};
use hwspec::handle::Psn;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Maximum number of packets in flight in one direction: further packets are sent later.
const IN_FLIGHT: usize = 3;
/// Bytes between the addresses of two messages at the responder, more than the longest message has.
const APART: u64 = 3 * MTU as u64;

/// A receive that any message fits.
const RECEIVE: u32 = 1 << 20;

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
    /// A packet in flight, by direction and number.
    Arrives(usize, usize),
    IsLost(usize, usize),
    IsCopied(usize, usize),
}

/// The effects of all messages, each executed once and in order.
#[derive(Debug, Default)]
struct Effects {
    /// The responder's [`End::executed`], and the requester's [`End::brought`].
    executed: Vec<(u32, u64)>,
    brought: Vec<(u32, Vec<u8>)>,
    /// Number of both at the end of each message.
    ends: Vec<[usize; 2]>,
}

impl Effects {
    fn of(scenario: &Scenario, memory: &[u8]) -> Self {
        let (mut all, mut psn) = (Self::default(), Psn::new(scenario.first_psn));
        for (message, (kind, len)) in (0u32..).zip(scenario.messages) {
            let start = u64::from(message) * APART;
            for from in (0..kind.packets(*len, MTU)).map(|i| i * MTU) {
                let at = start + u64::from(from);
                match kind {
                    Kind::Read => {
                        let bytes = &memory[at as usize..][..MTU.min(len - from) as usize];
                        all.brought.push((message, bytes.to_vec()));
                    }
                    Kind::Write => all.executed.push((psn.get(), VA + at)),
                    _ => all.executed.push((psn.get(), from.into())),
                }
                psn = psn.add(1);
            }
            all.ends.push([all.executed.len(), all.brought.len()]);
        }
        all
    }
}

#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    scenario: Scenario,
    requester: End,
    responder: End,
    /// Packets in flight: requests, and answers.
    wire: [Vec<Pkt>; 2],
    losses: u8,
    copies: u8,
    effects: Rc<Effects>,
}

impl Endpoints {
    pub(super) fn new(scenario: Scenario) -> Self {
        let mut requester = End::new(scenario.first_psn);
        (requester.memory, requester.ask_every) = (Vec::new(), 2);
        let inner = &mut requester.requester;
        (inner.retry_count, inner.rnr_retry, inner.log_reads) = (scenario.retry_count, scenario.rnr_retry, 0);
        inner.reload();
        requester.posted = (0..)
            .zip(scenario.messages)
            .map(|(message, (kind, len))| match kind {
                Kind::Read => Post::read(message * APART, *len),
                Kind::Write => Post::write(message * APART, *len),
                _ => Post::send(*len),
            })
            .collect();
        let mut responder = End::new(scenario.first_psn);
        responder.responder.log_resources = 0;
        // Packets of one READ bring different bytes.
        let len = scenario.messages.len() as u64 * APART;
        responder.memory = (0..len).map(|at| (at / u64::from(MTU)) as u8).collect();
        responder.receives = vec![RECEIVE; scenario.receives.into()];
        Self {
            effects: Rc::new(Effects::of(&scenario, &responder.memory)),
            requester,
            responder,
            wire: Default::default(),
            losses: scenario.losses,
            copies: scenario.copies,
            scenario,
        }
    }

    /// All the parts in which two states can differ.
    pub(super) fn key(&self) -> Vec<u8> {
        let mut key = self.requester.requester.as_bytes().to_vec();
        key.extend_from_slice(self.responder.responder.as_bytes());
        key.extend([self.losses, self.copies, u8::from(self.is_refused())]);
        key.extend([
            self.responder.receives.len() as u8,
            self.responder.executed.len() as u8,
            self.requester.brought.len() as u8,
            self.requester.succeeded() as u8,
            self.failure().map_or(0, |s| s as u8),
        ]);
        for packets in &self.wire {
            for one in packets {
                key.extend_from_slice(&one.psn.to_le_bytes());
                let syndrome = one.aeth.map_or(0, |(syndrome, _)| syndrome);
                key.extend([one.opcode.raw(), u8::from(one.ask), syndrome]);
            }
            key.push(0xff);
        }
        let reads = self.count(Kind::Read);
        self.responder.resources[..reads].iter().for_each(|one| key.extend_from_slice(one.as_bytes()));
        key
    }

    /// The reason why the requester gave up.
    pub(super) fn failure(&self) -> Option<Status> {
        self.requester.failure()
    }

    /// True if the responder ended the connection.
    pub(super) fn is_refused(&self) -> bool {
        self.responder.refused.is_some()
    }

    /// Checks that messages took effect at most once and in order, and that a message completed only if it did.
    pub(super) fn check_effects(&self) {
        let (executed, brought) = (&self.responder.executed, &self.requester.brought);
        assert!(
            self.effects.executed.starts_with(executed),
            "each packet once, in order, in place: {self:?}"
        );
        assert!(
            self.effects.brought.starts_with(brought),
            "the bytes that were asked for, in order: {self:?}"
        );
        let completed = &self.requester.completed;
        let done = (0..).zip(completed).filter(|(_, (_, status))| status.is_none());
        assert!(done.clone().all(|(i, (message, _))| *message == i), "each once, in order: {self:?}");
        if let Some([packets, responses]) = done.last().map(|(i, _)| self.effects.ends[i as usize]) {
            assert!(
                packets <= executed.len() && responses <= brought.len(),
                "completed unfinished: {self:?}"
            );
        }
        let failures = completed.iter().filter(|(_, status)| status.is_some()).count();
        assert!(failures <= 1, "a connection ends once: {self:?}");
    }

    /// True if every message was delivered and its sender knows, or the sender has given up.
    pub(super) fn is_over(&self) -> bool {
        self.failure().is_some() || self.requester.succeeded() == self.scenario.messages.len()
    }

    /// Number of messages of this kind.
    fn count(&self, kind: Kind) -> usize {
        self.scenario.messages.iter().filter(|(one, _)| *one == kind).count()
    }

    /// The possible next steps.
    pub(super) fn steps(&self) -> Vec<Step> {
        if self.is_over() {
            return Vec::new();
        }
        let (timers, responder) = (&self.requester.requester.timers, &self.responder.responder);
        let mut steps = Vec::new();
        let owes_answer = responder.owes_answers() || responder.owes_ack();
        let all = [
            (Step::SendPacket, self.requester.may_send() && self.wire[0].len() < IN_FLIGHT),
            (Step::SendAnswer, owes_answer && self.wire[1].len() < IN_FLIGHT),
            (Step::PostReceive, self.responder.receives.len() < self.count(Kind::Send)),
            (Step::AckTimer, timers.runs(Timer::Ack)),
            (Step::RnrTimer, timers.runs(Timer::Rnr)),
        ];
        steps.extend(all.into_iter().filter_map(|(step, can)| can.then_some(step)));
        for (from, packets) in self.wire.iter().enumerate() {
            for i in (0..packets.len()).filter(|i| *i == 0 || packets[*i] != packets[*i - 1]) {
                steps.push(Step::Arrives(from, i));
                steps.extend((self.losses > 0).then_some(Step::IsLost(from, i)));
                steps.extend((self.copies > 0).then_some(Step::IsCopied(from, i)));
            }
        }
        steps
    }

    /// The state after `step`.
    pub(super) fn after(&self, step: Step) -> Self {
        let mut w = self.clone();
        match step {
            Step::SendPacket => w.wire[0].extend(w.requester.next_request()),
            // The requester does not read the MSN, so answers that differ only in it are the same.
            Step::SendAnswer => w.wire[1].extend(w.responder.next_answer().map(|answer| {
                let aeth = answer.aeth.map(|(syndrome, _)| (syndrome, 0));
                Pkt { aeth, ..answer }
            })),
            Step::PostReceive => w.responder.receives.push(RECEIVE),
            Step::AckTimer => {
                acknowledgement_timeout(&mut w.requester, |_| false);
            }
            Step::RnrTimer => w.requester.requester.rnr_timeout(),
            Step::Arrives(from, i) => {
                let to = if from == 0 { &mut w.responder } else { &mut w.requester };
                to.take(&w.wire[from].remove(i));
            }
            Step::IsLost(from, i) => {
                w.wire[from].remove(i);
                w.losses -= 1;
            }
            Step::IsCopied(from, i) => {
                w.wire[from].push(w.wire[from][i].clone());
                w.copies -= 1;
            }
        }
        w.wire
            .iter_mut()
            .for_each(|all| all.sort_by_key(|one| (one.opcode.raw(), one.psn, one.ask, one.aeth)));
        w
    }
}
