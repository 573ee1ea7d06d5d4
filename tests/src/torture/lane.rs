//! One lane: what this side sends on it, and the expected effect of the peer's requests.

use super::{
    judge::{Arrivals, Rules},
    plan::{Kind, Plan, Request, SLOTS},
    sizes::{LANES, Layout, Way},
};
use crate::end::Words;
use driver::{Completion, Qp, SendOp, WcOpcode, WcStatus};
use std::sync::Arc;

/// The requests that a lane has sent, which its peer needs to check the arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Requests posted.
    pub posted: u64,
    /// Of those, requests that consume a receive.
    pub receives: u64,
    /// Of those, the ones known to be complete.
    pub received: u64,
    /// The amount added to the peer's sum, and the part of it known to be complete.
    pub added: [u64; 2],
}

/// A queue pair and its peer.
pub struct Lane {
    /// The queue pair that sends.
    pub qp: Arc<Qp>,
    /// The queue pair that receives, if it is a different one: XRC's target.
    pub target: Option<Arc<Qp>>,
    index: usize,
    plan: Plan,
    peer: Plan,
    arrivals: Arrivals,
    sent: Sent,
    /// All requests before this one are complete.
    done: u64,
    /// The connection has ended.
    broken: bool,
    /// The expected results of atomics, by buffer.
    expected: [Option<u64>; SLOTS as usize],
    /// Number of FetchAdds on the lane's own word, and of CmpSwaps, posted so far.
    atomics: [u64; 2],
}

impl Lane {
    /// Creates lane `index` of side `side`, 0 or 1, of a run of `seed`.
    pub fn new(
        index: usize,
        side: usize,
        seed: u64,
        rules: Rules,
        qp: Arc<Qp>,
        target: Option<Arc<Qp>>,
    ) -> Self {
        let service = LANES[index].service();
        let plan = |side: usize| Plan::new(seed, (2 * index + side) as u8, service);
        Self {
            qp,
            target,
            index,
            plan: plan(side),
            peer: plan(1 - side),
            arrivals: Arrivals::new(plan(1 - side), service, rules),
            sent: Sent::default(),
            done: 0,
            broken: false,
            expected: [None; SLOTS as usize],
            atomics: [0; 2],
        }
    }

    /// Returns the requests that were sent.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Returns the number of messages that arrived.
    pub fn arrived(&self) -> u64 {
        self.arrivals.count
    }

    /// Returns true if its connection has ended.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns true if nothing is outstanding.
    pub fn is_idle(&self) -> bool {
        self.broken || self.done == self.sent.posted
    }

    /// Prepares the next request and its data if there is room for one. Returns its number, itself and its operation. With `last`, stops
    /// once the previous request is signaled, so that the end of the run is reported.
    pub fn next(
        &mut self,
        last: bool,
        words: &Words,
        layout: &Layout,
        remote: &dyn Fn(usize) -> (u64, u32),
    ) -> Option<(u64, Request, SendOp)> {
        let n = self.sent.posted;
        let over = last && n.checked_sub(1).is_none_or(|before| self.plan.request(before).signaled);
        if self.broken || over || n - self.done == SLOTS {
            return None;
        }
        let request = self.plan.request(n);
        if !request.kind.answers() {
            self.plan.fill(words, layout.source(self.index, n), n, request.len);
        }
        let expected = &mut self.expected[(n % SLOTS) as usize];
        *expected = None;
        let mut count = |which: usize| {
            let value = self.atomics[which];
            self.atomics[which] += 1;
            *expected = Some(value);
            let (raddr, rkey) = remote(layout.word(self.index, which));
            (value, raddr, rkey)
        };
        let imm = self.plan.immediate(n);
        let op = match request.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm => SendOp::SendImm(imm),
            Kind::Write | Kind::WriteImm => {
                let (raddr, rkey) = remote(layout.target(self.index, n));
                match request.kind {
                    Kind::Write => SendOp::Write { raddr, rkey },
                    _ => SendOp::WriteImm { raddr, rkey, imm },
                }
            }
            Kind::Read => {
                let (raddr, rkey) = remote(layout.readable + 8 * Layout::read_from(&request));
                SendOp::Read { raddr, rkey }
            }
            Kind::FetchAdd => match added(&request) {
                Some(add) => {
                    let (raddr, rkey) = remote(layout.sum());
                    self.sent.added[0] += add;
                    SendOp::FetchAdd { raddr, rkey, add }
                }
                None => {
                    let (_, raddr, rkey) = count(0);
                    SendOp::FetchAdd { raddr, rkey, add: 1 }
                }
            },
            Kind::CmpSwap => {
                let (compare, raddr, rkey) = count(1);
                SendOp::CmpSwap { raddr, rkey, compare, swap: compare + 1 }
            }
        };
        self.sent.posted += 1;
        self.sent.receives += u64::from(request.kind.receives());
        Some((n, request, op))
    }

    /// Handles a completion of this side: it must be of the next signaled request, with the expected result. `readable` is the plan of the
    /// data that the peer lets read.
    pub fn completed(
        &mut self,
        wc: &Completion,
        rules: Rules,
        words: &Words,
        layout: &Layout,
        readable: &Plan,
    ) -> Result<(), String> {
        let ended = match wc.status {
            WcStatus::Success => false,
            WcStatus::RetryExcErr => rules.wears_out,
            WcStatus::WrFlushErr => self.broken,
            _ => false,
        };
        if ended {
            self.broken = true;
            return Ok(());
        }
        let mut next = self.done;
        while !self.plan.request(next).signaled {
            next += 1;
        }
        let request = self.plan.request(next);
        let opcode = match request.kind {
            Kind::Send | Kind::SendImm => WcOpcode::Send,
            Kind::Write | Kind::WriteImm => WcOpcode::RdmaWrite,
            Kind::Read => WcOpcode::RdmaRead,
            Kind::FetchAdd => WcOpcode::FetchAdd,
            Kind::CmpSwap => WcOpcode::CompSwap,
        };
        let expected = (WcStatus::Success, next, opcode);
        let found = (wc.status, wc.wr_id, wc.opcode);
        if found != expected || next >= self.sent.posted || self.broken {
            return Err(self.wrong(format!("expected {expected:?}, found {found:?}")));
        }
        if request.kind.answers() && wc.byte_len as usize != request.len {
            return Err(
                self.wrong(format!("{next}, {request:?}: {} bytes were said to have come", wc.byte_len))
            );
        }
        let at = layout.source(self.index, next);
        let right = match (request.kind, self.expected[(next % SLOTS) as usize]) {
            (Kind::Read, _) => readable.check(words, at, READABLE, Layout::read_from(&request), request.len),
            (_, Some(value)) if words.word(at) != value => {
                Err(format!("expected {value} before the atomic, found {}", words.word(at)))
            }
            _ => Ok(()),
        };
        right.map_err(|what| self.wrong(format!("{next}, {request:?}: {what}")))?;
        for n in self.done..=next {
            let request = self.plan.request(n);
            self.sent.received += u64::from(request.kind.receives());
            if request.kind == Kind::FetchAdd {
                self.sent.added[1] += added(&request).unwrap_or(0);
            }
        }
        self.done = next + 1;
        Ok(())
    }

    /// Handles a message received in the buffer at `inbox`, after `before` bytes that do not belong to the message.
    pub fn received(
        &mut self,
        wc: &Completion,
        rules: Rules,
        words: &Words,
        layout: &Layout,
        inbox: usize,
    ) -> Result<(), String> {
        let mut passed = Vec::new();
        let n = self.arrivals.take(wc, words.word(inbox), &mut passed).map_err(|what| self.wrong(what))?;
        // Data that a reliable peer wrote before it has arrived as well.
        for n in passed.into_iter().chain([n]) {
            let request = self.peer.request(n);
            let right = match request.kind {
                Kind::Send | Kind::SendImm => self.peer.check(words, inbox, n, 0, request.len),
                Kind::Write | Kind::WriteImm => {
                    let unreliable = LANES[self.index] == Way::Own(driver::Service::Uc);
                    let any = unreliable && (rules.reordered || rules.copies > 1);
                    self.peer.check_written(words, layout.target(self.index, n), n, request.len, any)
                }
                _ => Ok(()),
            };
            right.map_err(|what| self.wrong(format!("from the peer, {n}, {request:?}: {what}")))?;
        }
        Ok(())
    }

    /// Checks that everything the peer `sent` has arrived.
    pub fn settle(&self, sent: &Sent) -> Result<(), String> {
        let count = self.arrivals.count;
        let reliable = !matches!(LANES[self.index].service(), driver::Service::Uc | driver::Service::Ud);
        if reliable && !(sent.received..=sent.receives).contains(&count) {
            let expected = (sent.received, sent.receives);
            return Err(
                self.wrong(format!("expected {expected:?} messages, at least and at most, found {count}"))
            );
        }
        match self.arrivals.end() <= sent.posted {
            true => Ok(()),
            false => Err(self.wrong(format!("message {} of {}", self.arrivals.end(), sent.posted))),
        }
    }

    fn wrong(&self, what: String) -> String {
        format!("lane {} ({:?}), QP {:#x}: {what}", self.index, LANES[self.index], self.qp.qpn())
    }
}

/// The number of the pattern that READs read.
pub const READABLE: u64 = 0xffff_ffff;

/// Returns the amount that a FetchAdd adds to the sum of all lanes, or `None` if it counts in the lane's own word.
fn added(request: &Request) -> Option<u64> {
    (request.draw % 2 == 0).then_some(request.draw >> 48)
}
