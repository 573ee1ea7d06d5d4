//! perftest's patterns in virtual time: what its tools would print on the adapter that `timing.rs` describes.
//!
//! Two programs, each with a QP on a function of its own, do what ib_read_lat, ib_write_lat, ib_send_lat and
//! ib_write_bw do, without a driver. The figures are the same at every run.

use super::{
    rig::{DATA, Link, Rig},
    sched::Ps,
    timed::{Timed, What},
    timing,
};
use crate::{Config, host::Iova};
use hwspec::{cqe::CqeOpcode, wqe::WqeOpcode};

/// A pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// One READ at a time; the whole round trip.
    ReadLat,
    /// WRITEs to and fro, each side polling its memory; half the round trip.
    WriteLat,
    /// SENDs to and fro; half the round trip.
    SendLat,
    /// WRITEs, 128 under way.
    WriteBw,
}

/// Latencies, in microseconds, as perftest's columns.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Latency {
    pub min: f64,
    pub max: f64,
    pub typical: f64,
    pub avg: f64,
    pub stdev: f64,
    pub p99: f64,
    pub p99_9: f64,
}

/// Throughput as perftest's columns: MB/s are 2^20 bytes, messages in millions per second.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Bandwidth {
    pub peak: f64,
    pub average: f64,
    pub mpps: f64,
}

/// What came of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figures {
    /// Of the `*_lat` tests.
    Latency(Latency),
    /// Of the `*_bw` tests.
    Bandwidth(Bandwidth),
}

/// A line of perftest's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages.
    pub iters: u32,
    /// The figures.
    pub figures: Figures,
    /// Each latency, or each time of completion, in picoseconds, in order.
    pub samples: Vec<Ps>,
}

/// A test that can't be run.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The size.
    #[error("message size {0}: expected 1 to {max} bytes", max = DATA / 2)]
    Size(u32),
    /// The iterations.
    #[error("{0} iterations: expected at least 2")]
    Iters(u32),
    /// The connection failed.
    #[error("iteration {0} did not complete: the connection is in error")]
    Broken(u32),
}

/// Messages under way in a bandwidth test (perftest's default).
const DEPTH: u32 = 128;
/// The largest message perftest sends inline in its latency tests.
const INLINE: u32 = 220;

/// Runs `test` with messages of `bytes`.
pub fn run(test: Test, bytes: u32, iters: u32) -> Result<Report, SimError> {
    if bytes == 0 || u64::from(bytes) > DATA / 2 {
        return Err(SimError::Size(bytes));
    }
    if iters < 2 {
        return Err(SimError::Iters(iters));
    }
    Bench::new(test, bytes, iters).run()
}

struct Bench {
    rig: Rig,
    timed: Timed,
    test: Test,
    bytes: u32,
    iters: u32,
    posted: [u32; 2],
    /// When the client began its iteration.
    start: Ps,
    samples: Vec<Ps>,
    broken: bool,
    /// Until when the program is busy.
    busy: Ps,
    /// An event is under way that lets it go on.
    waking: bool,
}

impl Bench {
    fn new(test: Test, bytes: u32, iters: u32) -> Self {
        let link = Link { psn: 0, ..Link::default() };
        Self {
            rig: Rig::new(Config::default(), link),
            timed: Timed::default(),
            test,
            bytes,
            iters,
            posted: [0; 2],
            start: 0,
            samples: Vec::with_capacity(iters as usize),
            broken: false,
            busy: 0,
            waking: false,
        }
    }

    fn run(mut self) -> Result<Report, SimError> {
        if self.test == Test::SendLat {
            for i in 0..2 {
                (0..64).for_each(|_| self.receive(i));
            }
        }
        match self.test {
            Test::WriteBw => self.fill(),
            _ => self.post(0),
        }
        while self.samples.len() < self.iters as usize && !self.broken {
            let Some(what) = self.timed.schedule.take() else { break };
            let fid = match what {
                What::Visible(at, len) => {
                    self.seen(at, len);
                    continue;
                }
                What::Program => {
                    self.waking = false;
                    self.fill();
                    continue;
                }
                What::Job(fid, job) => {
                    self.timed.carry_out(&self.rig.adapter, &mut self.rig.machine, fid, job);
                    fid
                }
                What::Frame(fid, flight) => {
                    self.timed.arrive(&self.rig.adapter, &mut self.rig.machine, fid, &flight);
                    fid
                }
            };
            for (at, len) in std::mem::take(&mut self.rig.machine.written) {
                self.timed.written(fid, at, len);
            }
        }
        if self.samples.len() < self.iters as usize {
            return Err(SimError::Broken(self.samples.len() as u32));
        }
        let figures = match self.test {
            Test::WriteBw => Figures::Bandwidth(bandwidth(self.bytes, &self.samples)),
            _ => Figures::Latency(latency(&self.samples)),
        };
        Ok(Report { bytes: self.bytes, iters: self.iters, figures, samples: self.samples })
    }

    fn receive(&mut self, i: usize) {
        let at = self.rig.sides[i].data + DATA / 2;
        self.rig.post_recv(i, at, self.bytes);
    }

    /// Program `i` posts one message and rings the doorbell.
    fn post(&mut self, i: usize) {
        let now = self.timed.schedule.now();
        let opcode = match self.test {
            Test::ReadLat => WqeOpcode::RdmaRead,
            Test::SendLat => WqeOpcode::Send,
            Test::WriteLat | Test::WriteBw => WqeOpcode::RdmaWrite,
        };
        let inline = matches!(self.test, Test::WriteLat | Test::SendLat) && self.bytes <= INLINE;
        if inline {
            self.rig.post_inline(i, opcode, self.bytes, true);
        } else {
            self.rig.post_send(i, opcode, self.bytes, 0, true);
        }
        self.posted[i] += 1;
        if i == 0 {
            self.start = now;
        }
        let rung = now.max(self.busy) + timing::POST + timing::PIO;
        self.busy = rung;
        let job = self.rig.doorbell(i);
        self.timed.submit(rung + timing::PCIE, self.rig.sides[i].fid, job);
    }

    /// The client of a bandwidth test posts while fewer than its depth are under way.
    fn fill(&mut self) {
        let now = self.timed.schedule.now();
        let under_way = self.posted[0] - self.samples.len() as u32;
        if under_way >= DEPTH || self.posted[0] >= self.iters || self.waking {
            return;
        }
        if self.busy <= now {
            self.post(0);
        }
        self.waking = true;
        self.timed.schedule.at(self.busy, What::Program);
    }

    /// Something that was written can be seen.
    fn seen(&mut self, at: Iova, len: u32) {
        for i in 0..2 {
            if self.rig.in_cq(i, at) {
                self.completion(i);
            }
            let data = self.rig.sides[i].data;
            let last = data + u64::from(self.bytes) - 1;
            if self.test == Test::WriteLat && at <= last && at + u64::from(len) > last {
                self.message(i, timing::POLL_MEMORY);
            }
        }
    }

    fn completion(&mut self, i: usize) {
        let Some(cqe) = self.rig.poll(i) else { return };
        let now = self.timed.schedule.now();
        match cqe.opcode() {
            CqeOpcode::Req => match self.test {
                Test::ReadLat => {
                    self.samples.push(now + timing::POLL_CQ - self.start);
                    self.busy = now + timing::POLL_CQ;
                    if self.posted[0] < self.iters {
                        self.post(0);
                        self.start = now + timing::POLL_CQ;
                    }
                }
                Test::WriteBw => {
                    self.samples.push(now);
                    self.fill();
                }
                _ => {}
            },
            CqeOpcode::RespSend => {
                self.receive(i);
                self.message(i, timing::POLL_CQ);
            }
            _ => self.broken = true,
        }
    }

    /// The peer's message is there: the server answers, the client takes the time and goes on.
    fn message(&mut self, i: usize, poll: Ps) {
        let now = self.timed.schedule.now() + poll;
        if i == 0 {
            self.samples.push((now - self.start) / 2);
            if self.posted[0] >= self.iters {
                return;
            }
        }
        self.busy = now;
        self.post(i);
        if i == 0 {
            self.start = now;
        }
    }
}

const PS_PER_US: f64 = 1e6;

fn latency(samples: &[Ps]) -> Latency {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let n = sorted.len();
    let us = |ps: Ps| ps as f64 / PS_PER_US;
    let avg = sorted.iter().map(|s| us(*s)).sum::<f64>() / n as f64;
    let variance = sorted.iter().map(|s| (us(*s) - avg).powi(2)).sum::<f64>() / n as f64;
    let rank = |q: f64| us(sorted[((n as f64 * q) as usize).min(n - 1)]);
    Latency {
        min: us(sorted[0]),
        max: us(sorted[n - 1]),
        typical: us(sorted[n / 2]),
        avg,
        stdev: variance.sqrt(),
        p99: rank(0.99),
        p99_9: rank(0.999),
    }
}

fn bandwidth(bytes: u32, done: &[Ps]) -> Bandwidth {
    const MIB: f64 = 1048576.0;
    const PS: f64 = 1e12;
    let rate = |messages: usize, ps: Ps| messages as f64 * PS / ps.max(1) as f64;
    let average = rate(done.len(), *done.last().unwrap_or(&1));
    // perftest's peak: the best stretch between two completions, of at least a hundred here.
    let stretch = 100.min(done.len() - 1);
    let peak = done.windows(stretch + 1).map(|w| rate(stretch, w[stretch] - w[0])).fold(average, f64::max);
    Bandwidth {
        peak: peak * f64::from(bytes) / MIB,
        average: average * f64::from(bytes) / MIB,
        mpps: average / 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typical(test: Test, bytes: u32) -> f64 {
        match run(test, bytes, 200).expect("the test runs").figures {
            Figures::Latency(l) => l.typical,
            Figures::Bandwidth(b) => b.average,
        }
    }

    #[test]
    fn every_run_gives_the_same_figures_and_the_same_trace() {
        let traced = |test| {
            let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let mut bench = Bench::new(test, 2, 300);
            let into = lines.clone();
            bench.timed.trace = Some(Box::new(move |e| into.lock().unwrap().push(format!("{e:?}"))));
            let report = bench.run().expect("the test runs");
            let lines = lines.lock().unwrap().clone();
            assert!(lines.len() > 900);
            (report, lines)
        };
        for test in [Test::ReadLat, Test::WriteLat, Test::SendLat, Test::WriteBw] {
            assert!(traced(test) == traced(test));
        }
    }

    #[test]
    fn small_messages_take_what_a_connectx5_takes() {
        // Public measurements on a direct cable, within the spread of start values.
        let (write, send) = (typical(Test::WriteLat, 8), typical(Test::SendLat, 8));
        assert!((0.88..1.05).contains(&write), "{write} us");
        assert!((0.85..1.0).contains(&send), "{send} us");
        let read = typical(Test::ReadLat, 2);
        assert!((1.5..2.7).contains(&read), "{read} us");
    }

    #[test]
    fn large_writes_reach_the_limit_of_the_slot() {
        let gbps = typical(Test::WriteBw, 65536) * 8.0 * 1048576.0 / 1e9;
        assert!((53.0..56.5).contains(&gbps), "{gbps} Gb/s");
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(run(Test::ReadLat, 0, 10).is_err());
        assert!(run(Test::ReadLat, 2, 1).is_err());
        assert!(run(Test::ReadLat, u32::MAX, 10).is_err());
    }
}
