//! The programs of a run, and the events that wake them.

use super::{
    super::{
        faults::FaultReport,
        mirror::Mirror,
        rig::{Link, Rig, Sizes},
        sched::Ps,
        spans::{Cause, Part},
        timed::{Happened, Timed},
        timing::{Dice, HostCosts, Spread},
    },
    Figures, Measure, Operation, Plan, Report, SimError, Watch,
    figures::{bandwidth, latency},
};
use crate::{Config, host::Iova};
use hwspec::{cqe::CqeOpcode, wqe::WqeOpcode};
use std::collections::VecDeque;

/// An event for a program.
enum Seen {
    /// This many bytes were written here and have become visible.
    Memory(Iova, u32, Cause),
    /// It is no longer busy and continues.
    Free(usize),
}

/// A program, which does one thing at a time: it posts or polls.
#[derive(Default)]
struct Program {
    /// Its queue pairs' sides.
    sides: Vec<usize>,
    /// Messages posted and not completed, by queue pair.
    under_way: Vec<u32>,
    /// For each outstanding completion, the number of messages that it covers; by queue pair.
    asked: Vec<VecDeque<u32>>,
    /// Messages after the last one that requests a completion, by queue pair.
    behind: Vec<u32>,
    /// Messages posted, by queue pair.
    posted: Vec<u32>,
    completed: u32,
    /// The next queue pair to post on.
    next: usize,
    /// Time until which it is busy.
    busy: Ps,
    /// An event that resumes it is scheduled.
    waking: bool,
    /// Completions that it is processing: time at which it is done, queue pair, number of messages.
    noted: VecDeque<(Ps, usize, u32)>,
    /// Time at which it began to post each message, for throughput.
    began: Vec<Ps>,
    /// Time at which each completion was seen, and the number of messages that it covers.
    done: Vec<(Ps, u32)>,
}

pub(super) struct Bench<'p> {
    plan: &'p Plan,
    rig: Rig,
    timed: Timed<'p, Seen>,
    dice: Dice,
    programs: Vec<Program>,
    /// For latencies, the time at which the client began its iteration.
    start: Ps,
    samples: Vec<Ps>,
    broken: bool,
    /// Receives the outcome of faults.
    found: Option<&'p mut FaultReport>,
}

impl<'p> Bench<'p> {
    pub(super) fn new(plan: &'p Plan) -> Self {
        Self::with_retries(plan, Link::default().retry_count)
    }

    /// A bench with this retry count for its queue pairs.
    pub(super) fn with_retries(plan: &'p Plan, retry_count: u8) -> Self {
        let link = Link { psn: 0, mtu: plan.mtu(), scatter_to_cqe: true, retry_count, ..Link::default() };
        // Programs of the near card talk to those of the far one, function by function.
        let functions = plan.functions as u8;
        let pairs: Vec<[u8; 2]> =
            (0..functions).flat_map(|f| (0..plan.qps).map(move |_| [f, functions + f])).collect();
        let card_of = (0..2 * functions).map(|f| usize::from(f >= functions)).collect();
        let qps = plan.qps as usize;
        let program = |end: usize, function: usize| Program {
            sides: (0..qps).map(|qp| 2 * (function * qps + qp) + end).collect(),
            under_way: vec![0; qps],
            asked: vec![VecDeque::new(); qps],
            behind: vec![0; qps],
            posted: vec![0; qps],
            ..Program::default()
        };
        let programs = (0..usize::from(functions)).flat_map(|f| [program(0, f), program(1, f)]).collect();
        let config = Config { link_layer: plan.profile.wire.link_layer, ..Config::default() };
        Self {
            plan,
            rig: Rig::of_pairs(config, link, &pairs, Sizes::MEASURE),
            timed: Timed::new(plan.profile.clone(), card_of),
            dice: Dice::new(plan.seed),
            programs,
            start: 0,
            samples: Vec::new(),
            broken: false,
            found: None,
        }
    }

    #[cfg(test)]
    pub(super) fn trace(&mut self, trace: super::super::runner::Trace) {
        self.timed.trace = Some(trace);
    }

    /// Records the data requested by `watch` in the following run.
    pub(super) fn watched(mut self, watch: Watch<'p>) -> Self {
        if watch.timeline {
            self.timed.spans.keep();
        }
        self.timed.mirror = watch.frames.map(Mirror::new);
        if let Some((plan, found)) = watch.faults {
            self.timed.inject(plan);
            self.found = Some(found);
        }
        self
    }

    pub(super) fn run(mut self) -> Result<Report, SimError> {
        if self.plan.operation == Operation::Send {
            // As many as a receive queue holds.
            for side in 0..self.rig.sides.len() {
                (0..255).for_each(|_| self.receive(side));
            }
        }
        match self.plan.measure {
            Measure::Latency => self.post(0, 0, Cause::new(0)),
            Measure::Bandwidth => (0..self.programs.len()).step_by(2).for_each(|p| self.fill(p)),
        }
        while !self.is_over() && !self.broken {
            let Some(what) = self.timed.step(&self.rig.adapter, &mut self.rig.machine) else { break };
            self.happened(what);
        }
        if let Some((to, found)) = self.found.take().zip(self.timed.found()) {
            *to = found;
        }
        if !self.is_over() {
            return Err(SimError::Broken(self.programs[0].completed.max(self.samples.len() as u32)));
        }
        Ok(self.report())
    }

    /// Sends a message to a card that receives nothing; returns the time at which the program sees the failure.
    pub(super) fn until_the_peer_is_dead(mut self) -> Ps {
        self.post(0, 0, Cause::new(0));
        while !self.broken {
            let step = self.timed.step_alone(&self.rig.adapter, &mut self.rig.machine);
            let Some(what) = step else { break };
            self.happened(what);
        }
        self.timed.now()
    }

    fn happened(&mut self, what: Happened<Seen>) {
        let (fid, cause) = match what {
            Happened::Other(Seen::Memory(at, len, cause)) => return self.seen(at, len, cause),
            Happened::Other(Seen::Free(p)) => return self.fill(p),
            Happened::Function { fid, cause, .. } => (fid, cause),
        };
        for (at, len) in std::mem::take(&mut self.rig.machine.written) {
            let completion = self.rig.side_of_cq(at).is_some();
            let seen = self.timed.written(fid, len, completion, cause);
            if completion || self.looks_at_data() {
                self.timed.at(seen.at, Seen::Memory(at, len, seen));
            }
        }
    }

    /// True if programs poll memory rather than completions.
    fn looks_at_data(&self) -> bool {
        (self.plan.operation, self.plan.measure) == (Operation::Write, Measure::Latency)
    }

    fn is_over(&self) -> bool {
        match self.plan.measure {
            Measure::Latency => self.samples.len() >= self.plan.iters as usize,
            Measure::Bandwidth => {
                self.programs.iter().step_by(2).all(|p| p.completed >= self.plan.iters * self.plan.qps)
            }
        }
    }

    fn report(mut self) -> Report {
        if let Some(mirror) = &mut self.timed.mirror {
            mirror.pass(Ps::MAX);
        }
        let Plan { bytes, iters, .. } = *self.plan;
        let clients = || self.programs.iter().step_by(2);
        let programs: Vec<_> = match self.plan.measure {
            Measure::Latency => Vec::new(),
            Measure::Bandwidth => clients().map(|p| bandwidth(bytes, &p.began, &p.done)).collect(),
        };
        let (figures, samples) = match self.plan.measure {
            Measure::Latency => (Figures::Latency(latency(&self.samples)), std::mem::take(&mut self.samples)),
            Measure::Bandwidth => {
                let mut began: Vec<_> = clients().flat_map(|p| p.began.iter().copied()).collect();
                let mut done: Vec<_> = clients().flat_map(|p| p.done.iter().copied()).collect();
                began.sort_unstable();
                done.sort_unstable();
                (
                    Figures::Bandwidth(bandwidth(bytes, &began, &done)),
                    done.iter().map(|(at, _)| *at).collect(),
                )
            }
        };
        let functions = 2 * self.plan.functions as u8;
        Report {
            bytes,
            iters,
            figures,
            programs,
            samples,
            frames: self.timed.frames,
            duration: self.timed.now(),
            loads: self.timed.loads(),
            counters: (0..functions).map(|fid| self.rig.adapter.region().counters(fid)).collect(),
            timeline: self.timed.spans.into_timeline(),
        }
    }

    fn host(&self) -> &'p HostCosts {
        &self.plan.profile.host
    }

    fn receive(&mut self, side: usize) {
        let at = self.rig.sides[side].data + Sizes::MEASURE.data / 2;
        self.rig.post_recv(side, at, self.plan.bytes);
    }

    /// Program `p` posts one message on its queue pair `qp` and rings the doorbell, once it is free.
    fn post(&mut self, p: usize, qp: usize, cause: Cause) {
        let plan = self.plan;
        let opcode = match plan.operation {
            Operation::Read => WqeOpcode::RdmaRead,
            Operation::Send => WqeOpcode::Send,
            Operation::Write => WqeOpcode::RdmaWrite,
            Operation::FetchAdd => WqeOpcode::AtomicFa,
            Operation::CompareSwap => WqeOpcode::AtomicCs,
        };
        let program = &mut self.programs[p];
        program.posted[qp] += 1;
        program.under_way[qp] += 1;
        program.behind[qp] += 1;
        let every = if plan.measure == Measure::Latency { 1 } else { plan.moderation.min(plan.depth) };
        let asks = program.behind[qp] == every || program.posted[qp] == plan.iters;
        if asks {
            program.asked[qp].push_back(std::mem::take(&mut program.behind[qp]));
        }
        let side = program.sides[qp];
        let inline =
            matches!(plan.operation, Operation::Write | Operation::Send) && plan.bytes <= plan.inline;
        let blocks = match inline {
            true => self.rig.post_inline(side, opcode, plan.bytes, asks),
            false => self.rig.post_send(side, opcode, plan.bytes, 1, asks),
        };
        let (host, card_costs, slot) = (&plan.profile.host, &plan.profile.card, &plan.profile.slot);
        let post = if plan.measure == Measure::Latency { host.post } else { host.post_rate };
        let more = blocks.saturating_sub(1) as Ps;
        if plan.measure == Measure::Bandwidth {
            self.programs[p].began.push(cause.at);
        }
        let (card, spans) = (p % 2, &mut self.timed.spans);
        let posted = spans.then(cause, card, Part::Post, cause.at + post.ps());
        let rung = posted.at + host.pio.ps() + more * host.pio_block.ps();
        let rung = spans.then(posted, card, Part::Doorbell, rung);
        self.programs[p].busy = rung.at;
        let there = spans.then(rung, card, Part::Down, rung.at + slot.one_way.ps());
        let whole = spans.then(there, card, Part::Blocks, there.at + more * card_costs.send_block.ps());
        self.timed.ring(whole, self.rig.sides[side].fid, self.rig.doorbell(side), self.rig.posted(side));
    }

    /// A throughput program processes completions, and posts while fewer messages than its depth are outstanding.
    fn fill(&mut self, p: usize) {
        let now = self.timed.now();
        let Plan { iters, depth, .. } = *self.plan;
        let program = &mut self.programs[p];
        while let Some((at, qp, messages)) = program.noted.front().copied().filter(|(at, ..)| *at <= now) {
            program.noted.pop_front();
            program.under_way[qp] -= messages;
            program.completed += messages;
            program.done.push((at, messages));
        }
        program.waking &= program.busy > now;
        let qps = program.sides.len();
        let has_room = |qp: &usize| program.under_way[*qp] < depth && program.posted[*qp] < iters;
        let room = (0..qps).map(|i| (program.next + i) % qps).find(has_room);
        let Some(qp) = room.filter(|_| !program.waking) else { return };
        if program.busy <= now {
            program.next = (qp + 1) % qps;
            self.post(p, qp, Cause::new(now));
        }
        let program = &mut self.programs[p];
        program.waking = true;
        self.timed.at(program.busy, Seen::Free(p));
    }

    /// Handles a write that has become visible.
    fn seen(&mut self, at: Iova, len: u32, cause: Cause) {
        if let Some(side) = self.rig.side_of_cq(at) {
            // Pairs of a function are adjacent, and so are the two programs of a pair.
            let (pair, end, qps) = (side / 2, side % 2, self.plan.qps as usize);
            return self.completion(2 * (pair / qps) + end, pair % qps, cause);
        }
        if self.looks_at_data() {
            for p in 0..2 {
                let last = self.rig.sides[p].data + u64::from(self.plan.bytes) - 1;
                if at <= last && at + u64::from(len) > last {
                    let host = self.host();
                    self.message(p, host.poll_memory.ps(), &host.spread_memory, cause);
                }
            }
        }
    }

    fn completion(&mut self, p: usize, qp: usize, cause: Cause) {
        let side = self.programs[p].sides[qp];
        let Some(cqe) = self.rig.poll(side) else { return };
        let host = self.host();
        match (cqe.opcode(), self.plan.measure) {
            (CqeOpcode::Req, Measure::Latency) => {
                if !matches!(self.plan.operation, Operation::Write | Operation::Send) {
                    let taken = self.take_note(0, host.poll_cq.ps(), &host.spread_cq, cause);
                    self.sample(taken.at - self.start, taken);
                    self.go_on(0, taken);
                }
            }
            (CqeOpcode::Req, Measure::Bandwidth) => {
                let program = &mut self.programs[p];
                let messages = program.asked[qp].pop_front().unwrap_or(0);
                let at = cause.at + host.poll_cq.ps();
                program.noted.push_back((at, qp, messages));
                self.timed.at(at, Seen::Free(p));
                let noted = self.timed.spans.then(cause, p % 2, Part::Notice, at);
                (0..messages).for_each(|_| self.timed.spans.message(noted));
            }
            (CqeOpcode::RespSend, measure) => {
                self.receive(side);
                if measure == Measure::Latency {
                    self.message(p, host.poll_cq.ps(), &host.spread_cq, cause);
                }
            }
            _ => self.broken = true,
        }
    }

    /// Program `p` notices the data or completion that `cause` made visible.
    fn take_note(&mut self, p: usize, poll: Ps, spread: &Spread, cause: Cause) -> Cause {
        let noted = self.timed.spans.then(cause, p % 2, Part::Notice, cause.at + poll);
        let later = noted.at + spread.draw(&mut self.dice);
        self.timed.spans.then(noted, p % 2, Part::Spread, later)
    }

    fn sample(&mut self, latency: Ps, end: Cause) {
        self.samples.push(latency);
        self.timed.spans.message(end);
    }

    /// Handles the arrival of the peer's message: the server answers; the client records the time and continues.
    fn message(&mut self, p: usize, poll: Ps, spread: &Spread, cause: Cause) {
        let taken = self.take_note(p, poll, spread, cause);
        if p == 0 {
            self.sample((taken.at - self.start) / 2, taken);
        }
        self.go_on(p, taken);
    }

    /// Program `p` posts its next message. The client's starts a chain of spans, the server's continues one.
    fn go_on(&mut self, p: usize, cause: Cause) {
        if p == 0 && self.samples.len() >= self.plan.iters as usize {
            return;
        }
        let cause = if p == 0 { Cause::new(cause.at) } else { cause };
        if p == 0 {
            self.start = cause.at;
        }
        self.post(p, 0, cause);
    }
}
