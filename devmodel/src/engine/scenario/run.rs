//! A scenario in progress: a program for each flow, and the events that wake it.

use super::{FlowOutcome, Outcome, Sample, Scenario};
use crate::{
    Config,
    engine::{
        rig::{Link, Rig, Sizes},
        sched::Ps,
        sim::Operation,
        spans::{Cause, Part},
        timed::{Happened, Timed},
        timing::{Rate, TimingProfile},
    },
    region::Geometry,
    state::Counters,
};
use hwspec::{cqe::CqeOpcode, wqe::WqeOpcode};
use std::collections::BTreeMap;

const MESSAGE: u64 = Scenario::MOST_MESSAGE;
const UNDER_WAY: u64 = Scenario::UNDER_WAY;
/// ECT(0): switches may mark packets.
const MAY_BE_MARKED: u8 = 2;

/// A scheduled event.
enum Next {
    /// A flow's program starts or continues.
    Post(usize),
    /// The completion queue of a side has an entry that its program can see.
    Seen(usize, Cause),
    /// Queues are sampled.
    Sample,
}

/// The program of a flow.
#[derive(Default)]
struct Program {
    /// Bytes posted.
    posted: u64,
    /// Messages posted and not completed, and the number of those after the last one that requests a completion.
    under_way: u64,
    silent: u64,
    /// Time until which it is busy.
    busy: Ps,
    end: Option<Ps>,
    failed: bool,
}

pub(super) struct Run<'s> {
    scenario: &'s Scenario,
    profile: TimingProfile,
    rig: Rig,
    timed: Timed<'s, Next>,
    programs: Vec<Program>,
    /// Host index of each host node.
    place: BTreeMap<usize, usize>,
    /// Programs that are not finished.
    left: usize,
    samples: Vec<Sample>,
}

/// Exponent of the smallest power of two that is at least `n`.
fn log2(n: usize) -> u8 {
    n.next_power_of_two().trailing_zeros() as u8
}

impl<'s> Run<'s> {
    /// A run of a checked scenario with host ports of `rate`.
    pub(super) fn new(scenario: &'s Scenario, rate: Rate) -> Self {
        let mut profile = scenario.profile.clone();
        (profile.wire.gbps, profile.wire.mtu) = (rate, scenario.mtu);
        let hosts = scenario.topology.hosts();
        let place: BTreeMap<usize, usize> = hosts.iter().enumerate().map(|(i, node)| (*node, i)).collect();
        let pairs: Vec<[u8; 2]> =
            scenario.flows.iter().map(|flow| [flow.from, flow.to].map(|node| place[&node] as u8)).collect();
        let mut each = vec![0; hosts.len()];
        pairs.iter().flatten().for_each(|fid| each[usize::from(*fid)] += 1);
        // Two queue pairs of each function are reserved.
        let most = each.into_iter().max().unwrap_or(0) + 4;
        let geometry = Geometry {
            functions: hosts.len() as u8,
            log_qp: log2(most).max(4),
            log_cq: log2(most).max(4),
            // A queue pair has four pages, a function some more.
            log_mtt: log2(16 * most).max(9),
            ..Geometry::SMALL
        };
        let sizes = Sizes { geometry, log_sq: 6, log_rq: 4, log_cq: 6, data: 2 * MESSAGE };
        let config = Config { dcqcn: scenario.dcqcn, ..Config::default() };
        let link = Link { psn: 0, mtu: scenario.mtu, traffic_class: MAY_BE_MARKED, ..Link::default() };
        let mut timed = Timed::new(profile.clone(), (0..hosts.len()).collect());
        timed.join(&scenario.topology, scenario.switches, scenario.seed);
        let mut run = Self {
            scenario,
            profile,
            rig: Rig::of_pairs(config, link, &pairs, sizes),
            timed,
            programs: scenario.flows.iter().map(|_| Program::default()).collect(),
            place,
            left: scenario.flows.len(),
            samples: Vec::new(),
        };
        for (number, flow) in scenario.flows.iter().enumerate() {
            run.timed.at(flow.start, Next::Post(number));
            if flow.operation == Operation::Send {
                (0..UNDER_WAY + 1).for_each(|_| run.receive(2 * number + 1));
            }
        }
        if scenario.sample > 0 {
            let first = scenario.flows.iter().map(|flow| flow.start).min().unwrap_or(0);
            run.timed.at(first, Next::Sample);
        }
        run
    }

    pub(super) fn run(mut self) -> Outcome {
        while self.left > 0 {
            let next = self.timed.next(&self.rig.adapter);
            if next.is_none() || self.scenario.until.zip(next).is_some_and(|(until, next)| next > until) {
                break;
            }
            let Some(what) = self.timed.step(&self.rig.adapter, &mut self.rig.machine) else { break };
            match what {
                Happened::Other(Next::Post(flow)) => self.post(flow),
                Happened::Other(Next::Seen(side, cause)) => self.seen(side, cause),
                Happened::Other(Next::Sample) => self.sample(),
                Happened::Function { fid, cause, .. } => self.written(fid, cause),
            }
        }
        self.outcome()
    }

    /// Handles the writes of function `fid` to memory.
    fn written(&mut self, fid: u8, cause: Cause) {
        let mut written = std::mem::take(&mut self.rig.machine.written);
        for (at, len) in written.drain(..) {
            let side = self.rig.side_of_cq(at);
            let seen = self.timed.written(fid, len, side.is_some(), cause);
            if let Some(side) = side {
                self.timed.at(seen.at, Next::Seen(side, seen));
            }
        }
        self.rig.machine.written = written;
    }

    fn receive(&mut self, side: usize) {
        let at = self.rig.sides[side].data + MESSAGE;
        self.rig.post_recv(side, at, MESSAGE as u32);
    }

    /// A flow's program posts as many messages as it may.
    fn post(&mut self, number: usize) {
        let (now, flow) = (self.timed.now(), &self.scenario.flows[number]);
        let program = &mut self.programs[number];
        if program.busy > now || program.under_way >= UNDER_WAY || program.posted >= flow.bytes {
            return;
        }
        let bytes = self.scenario.message.min(flow.bytes - program.posted);
        program.posted += bytes;
        program.under_way += 1;
        program.silent += 1;
        let asks = program.silent == self.scenario.moderation || program.posted == flow.bytes;
        if asks {
            program.silent = 0;
        }
        let opcode = match flow.operation {
            Operation::Send => WqeOpcode::Send,
            Operation::Read => WqeOpcode::RdmaRead,
            _ => WqeOpcode::RdmaWrite,
        };
        let (side, host) = (2 * number, &self.profile.host);
        self.rig.post_send(side, opcode, bytes as u32, 0, asks);
        let (card, spans) = (usize::from(self.rig.sides[side].fid), &mut self.timed.spans);
        let posted = spans.then(Cause::new(now), card, Part::Post, now + host.post_rate.ps());
        let rung = spans.then(posted, card, Part::Doorbell, posted.at + host.pio.ps());
        let there = spans.then(rung, card, Part::Down, rung.at + self.profile.slot.one_way.ps());
        self.programs[number].busy = rung.at;
        self.timed.ring(there, card as u8, self.rig.doorbell(side), self.rig.posted(side));
        self.timed.at(rung.at, Next::Post(number));
    }

    /// A program sees a completion.
    fn seen(&mut self, side: usize, cause: Cause) {
        let Some(cqe) = self.rig.poll(side) else { return };
        let number = side / 2;
        match cqe.opcode() {
            CqeOpcode::Req => {
                let program = &mut self.programs[number];
                // It also completes the preceding messages that requested no completion.
                program.under_way -= self.scenario.moderation.min(program.under_way - program.silent);
                let noted = cause.at + self.profile.host.poll_cq.ps();
                if program.under_way == 0 && program.posted == self.scenario.flows[number].bytes {
                    program.end = Some(noted);
                    self.left -= 1;
                } else {
                    self.timed.at(noted, Next::Post(number));
                }
            }
            CqeOpcode::RespSend => self.receive(side),
            _ => {
                let program = &mut self.programs[number];
                if !program.failed && program.end.is_none() {
                    program.failed = true;
                    self.left -= 1;
                }
            }
        }
    }

    fn sample(&mut self) {
        let queued = self.timed.ports().iter().map(|(.., load)| load.queued).collect();
        let (at, came) = (self.timed.now(), self.timed.came().to_vec());
        self.samples.push(Sample { at, queued, came });
        if self.samples.len() < Scenario::MOST_SAMPLES {
            self.timed.at(at + self.scenario.sample, Next::Sample);
        }
    }

    fn outcome(mut self) -> Outcome {
        let topology = &self.scenario.topology;
        let hosts = topology.hosts();
        let flows = self.scenario.flows.iter().zip(&self.programs).map(|(flow, program)| {
            let frames = flow.bytes.div_ceil(self.scenario.mtu.into());
            // Headers from Ethernet to BTH, ICRC, and framing overhead.
            let bytes = flow.bytes + frames * (14 + 20 + 8 + 12 + 4 + 24);
            let alone = topology.alone(flow.from, flow.to, bytes, self.scenario.switches.latency);
            FlowOutcome { flow: *flow, end: program.end, failed: program.failed, alone }
        });
        let flows = flows.collect();
        let counted = |counter: Counters| -> u64 {
            let fids = 0..self.place.len() as u8;
            fids.map(|fid| self.rig.adapter.region().counters(fid)[counter as usize]).sum()
        };
        let (notifications, sequence_errors, timeouts) = (
            counted(Counters::NpCnpSent),
            counted(Counters::PacketSeqErr),
            counted(Counters::LocalAckTimeoutErr),
        );
        Outcome {
            flows,
            switches: topology.switches().to_vec(),
            hosts,
            ports: self.timed.ports(),
            pauses: self.timed.pauses(),
            samples: self.samples,
            came: self.timed.came().to_vec(),
            frames: self.timed.frames,
            notifications,
            sequence_errors,
            timeouts,
            duration: self.timed.now(),
        }
    }
}
