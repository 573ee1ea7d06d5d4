//! A program: it opens a function, connects to its partner, does sends, writes, reads and atomic adds, checks all results, and closes;
//! several times.

use crate::{
    machine::{Report, machine},
    schedule::{Point, Random, begin_call, found, visit},
    transport::{LabTransport, gid},
};
use devmodel::host::Party;
use driver::{Completion, Device, OpenOptions, SendOp, WcOpcode, WcStatus};
use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};
use tests::end::{Card, End, Patience, all_rights, register};

/// Bytes of an end's memory: written by the partner, received, outgoing, read back.
const LEN: usize = 4 * PART;
const PART: usize = 16 << 10;
const INBOX: usize = 0;
const RECEIVED: usize = PART;
const OUTBOX: usize = 2 * PART;
const READ: usize = 3 * PART;
/// Maximum number of outstanding requests, and bytes for each in a part.
const AT_ONCE: usize = 2;
const EACH: usize = 6 << 10;
/// Offset in the inbox of the word that the partner adds to.
const COUNTER: usize = PART - 8;
/// Messages in a round, and bytes for each.
const MESSAGES: usize = 16;
const MESSAGE: usize = 1 << 10;
/// Flag in a receive's `wr_id`.
const IS_RECEIVE: u64 = 1 << 32;

/// One program of a pair.
#[derive(Clone, Copy)]
pub struct Role {
    pub party: Party,
    pub fid: u8,
    pub pair: usize,
    /// How many times the pair has been started before.
    pub generation: u32,
    pub side: usize,
    /// The other program: its place and the generation of that place.
    pub partner: (Party, u32),
    pub seed: u64,
    pub rounds: u32,
}

/// Returns the bytes of message or request `n` of a program.
fn pattern(seed: u64, n: usize, len: usize) -> Vec<u8> {
    let random = Random::new(seed ^ (n as u64) << 32 | len as u64);
    let words = (0..len.div_ceil(8)).flat_map(|_| random.next().to_ne_bytes());
    words.take(len).collect()
}

/// Returns the length of message `n` of a program.
fn message_len(seed: u64, n: usize) -> usize {
    Random::new(seed ^ 0xabcd ^ n as u64).below(MESSAGE + 1)
}

impl Role {
    fn key(&self, round: u32, side: usize) -> (usize, u32, usize) {
        (self.pair, self.generation << 8 | round, side)
    }

    fn reported(&self, round: u32, side: usize) -> Option<Report> {
        machine().reports.borrow().get(&self.key(round, side)).cloned()
    }

    fn report(&self, round: u32, report: Report) {
        machine().reports.borrow_mut().insert(self.key(round, self.side), report);
    }

    /// Returns true if the partner has ended for good.
    fn is_left(&self) -> bool {
        let place = machine().place(self.partner.0);
        place.dead.get() || !place.taken.get() || place.generation.get() != self.partner.1
    }

    /// Runs the program.
    pub fn live(self) {
        let random = Random::new(self.seed);
        for round in 0..self.rounds {
            begin_call("opening");
            machine().open(self.party, self.fid);
            let transport = LabTransport { party: self.party, fid: self.fid, polls: AtomicU32::new(0) };
            let options = OpenOptions {
                gids: vec![[0xfe; 16], gid(self.fid)],
                command_timeout: Duration::from_secs(3600),
                eq_entries: 64,
                ..OpenOptions::default()
            };
            let device = Device::open(Arc::new(transport), options).expect("the function is opened");
            let end = End::new(device.clone(), LEN).expect("an end is made");
            Talk { role: self, round, random: &random, end: &end, got: 0.into(), errs: false.into() }.hold();
            begin_call("closing");
            drop(end);
            device.close().expect("the function is closed");
            machine().close(self.party, self.fid);
        }
        begin_call("leaving");
        let place = machine().place(self.party);
        place.ends.set(true);
        while place.parked.get() {
            machine().wake(self.party.0);
            visit(Point::Nap);
        }
        machine().leave(self.party);
    }
}

/// One round with the partner.
struct Talk<'a> {
    role: Role,
    round: u32,
    random: &'a Random,
    end: &'a End,
    /// Messages received.
    got: std::cell::Cell<usize>,
    /// The connection has failed because the partner is gone.
    errs: std::cell::Cell<bool>,
}

impl Talk<'_> {
    fn hold(&self) {
        let role = self.role;
        let card = self.end.card();
        let mut ours = Report { card, ready: false, sent: None };
        role.report(self.round, ours.clone());
        let Some(theirs) = self.wait_for(|report| Some(report.card)) else { return };
        begin_call("connecting");
        self.end
            .connect(&theirs, Patience { timeout: 10, retry_cnt: 7 })
            .expect("the queue pair is connected");
        for n in 0..MESSAGES {
            let at = RECEIVED + n * MESSAGE;
            self.end.receive(IS_RECEIVE | n as u64, at, MESSAGE);
        }
        ours.ready = true;
        role.report(self.round, ours.clone());
        if self.wait_for(|report| report.ready.then_some(())).is_none() {
            return;
        }
        ours.sent = Some(self.send_all(&theirs));
        role.report(self.round, ours);
        let Some(sent) = self.wait_for(|report| report.sent) else { return };
        begin_call("receiving what was sent");
        while self.got.get() < sent && !self.errs.get() {
            self.poll(&mut VecDeque::new());
        }
        assert_eq!(self.got.get().min(sent), self.got.get(), "messages that nobody sent");
    }

    /// Waits until `what` finds something in the partner's report. Returns `None` if the partner died.
    fn wait_for<T>(&self, what: impl Fn(Report) -> Option<T>) -> Option<T> {
        begin_call("");
        loop {
            if let Some(found) = self.role.reported(self.round, 1 - self.role.side).and_then(&what) {
                return Some(found);
            }
            if self.role.is_left() {
                return None;
            }
            self.poll(&mut VecDeque::new());
        }
    }

    /// Does the work of this round. Returns the number of messages sent.
    fn send_all(&self, theirs: &Card) -> usize {
        let (mut sent, mut added, mut n) = (0, 0, 0);
        let words = &self.end.words;
        for _ in 0..1 + self.random.below(4) {
            // Each request has its own range in each of the parts.
            let mut asked: VecDeque<Asked> = VecDeque::new();
            begin_call("posting");
            for at in 0..1 + self.random.below(AT_ONCE) {
                let (slot, len) = (at * EACH, 1 + self.random.below(EACH));
                n += 1;
                let bytes = pattern(self.role.seed, n, len);
                let mut post = |op, at: usize, len: usize, check: Check| {
                    let id = (n as u64) << 8 | asked.len() as u64;
                    asked.push_back(Asked { id, check });
                    self.end.post(id, op, &[self.end.sge(at, len)]);
                };
                let (raddr, rkey) = (theirs.addr + (INBOX + slot) as u64, theirs.rkey);
                match self.random.below(4) {
                    0 if sent < MESSAGES => {
                        let len = message_len(self.role.seed, sent);
                        words.put(OUTBOX + slot, &pattern(self.role.seed ^ 1, sent, len));
                        post(SendOp::Send, OUTBOX + slot, len, Check::Nothing);
                        sent += 1;
                    }
                    1 => {
                        let raddr = theirs.addr + COUNTER as u64;
                        post(
                            SendOp::FetchAdd { raddr, rkey, add: 1 },
                            READ + slot,
                            8,
                            Check::Was(READ + slot, added),
                        );
                        added += 1;
                    }
                    _ => {
                        words.put(OUTBOX + slot, &bytes);
                        post(SendOp::Write { raddr, rkey }, OUTBOX + slot, len, Check::Nothing);
                        post(
                            SendOp::Read { raddr, rkey },
                            READ + slot,
                            len,
                            Check::Bytes(READ + slot, bytes),
                        );
                    }
                }
            }
            begin_call("completing");
            while !asked.is_empty() {
                self.poll(&mut asked);
            }
            if self.errs.get() {
                break;
            }
            if self.random.one_in(2) {
                begin_call("registering and deregistering");
                let region = register(&self.end.pd, words, all_rights()).expect("memory is registered");
                drop(region);
            }
        }
        sent
    }

    /// Polls a completion; those of `asked` must come in order, each exactly once.
    fn poll(&self, asked: &mut VecDeque<Asked>) {
        let mut out = [Completion::default()];
        if self.end.cq.poll(&mut out) == 0 {
            return;
        }
        found();
        let [wc] = out;
        if wc.status != WcStatus::Success {
            assert!(
                self.role.is_left(),
                "{:?} of {:#x} (vendor {:#x}), though the partner lives",
                wc.status,
                wc.wr_id,
                wc.vendor_err
            );
            self.errs.set(true);
        }
        if wc.wr_id & IS_RECEIVE != 0 {
            return self.received(&wc);
        }
        let first = asked.pop_front();
        let Some(first) = first else { panic!("a completion of {:#x}, which nothing waits for", wc.wr_id) };
        assert_eq!(wc.wr_id, first.id, "completions come in the order of their requests");
        if wc.status == WcStatus::Success {
            match first.check {
                Check::Nothing => {}
                Check::Bytes(at, bytes) => {
                    assert!(self.end.words.bytes(at, bytes.len()) == bytes, "what was written is read back");
                }
                Check::Was(at, count) => {
                    assert_eq!(self.end.words.word(at), count, "each addition is made once")
                }
            }
        }
    }

    fn received(&self, wc: &Completion) {
        if wc.status != WcStatus::Success {
            return;
        }
        let n = self.got.get();
        self.got.set(n + 1);
        assert_eq!((wc.opcode, wc.wr_id), (WcOpcode::Recv, IS_RECEIVE | n as u64), "messages come in order");
        let seed = self.role.seed ^ 1 << 63;
        let len = message_len(seed, n);
        assert_eq!(wc.byte_len as usize, len, "bytes of message {n}");
        let bytes = pattern(seed ^ 1, n, len);
        assert!(self.end.words.bytes(RECEIVED + n * MESSAGE, len) == bytes, "message {n} is what was sent");
    }
}

/// An outstanding request.
struct Asked {
    id: u64,
    check: Check,
}

/// The condition that must hold when a request completes.
enum Check {
    Nothing,
    /// The memory at this offset holds these bytes.
    Bytes(usize, Vec<u8>),
    /// The memory at this offset holds this word.
    Was(usize, u64),
}
