//! The timed runner: the same stages, each job on its unit, in virtual picoseconds.

use super::{
    dispatch::dispatch,
    runner::{self, Trace, TraceEvent, Traced},
    sched::{Ps, Schedule},
    timing::{self, UNITS, Unit},
};
use crate::{
    Adapter,
    host::{Host, Iova, Rid},
    mlx5::{Frame, Job, Payload, Step, step::Buffers},
    region::{Func, SlotPayload, WireRing},
};
use std::collections::BTreeMap;

/// A frame between two functions.
pub(crate) struct Flight {
    frame: Frame,
    bytes: Vec<u8>,
    from: u8,
}

/// Something that happens at a time.
pub(crate) enum What {
    /// A function has a job.
    Job(u8, Job),
    /// A frame is there.
    Frame(u8, Box<Flight>),
    /// A program can see what was written here, and how much it is.
    Visible(Iova, u32),
    /// The program that was busy goes on.
    Program,
}

/// Runs the pipeline in virtual time; see the [module](self).
#[derive(Default)]
pub(crate) struct Timed {
    pub schedule: Schedule<What>,
    buffers: Buffers,
    /// When each unit of each function is free.
    free: BTreeMap<(u8, Unit), Ps>,
    /// When the last packet of a flow (function, peer's QP) was ready for the wire.
    flow: BTreeMap<(u8, [u8; 3]), Ps>,
    /// The earliest timer of each function for which there is an event.
    timer: BTreeMap<u8, Option<Ps>>,
    pub trace: Option<Trace>,
}

impl Timed {
    /// Occupies `unit` of `fid` for `busy` from `at` on, or from when it is free; says when it is done.
    pub(crate) fn occupy(&mut self, fid: u8, unit: Unit, at: Ps, busy: Ps) -> Ps {
        debug_assert!((unit as usize) < UNITS);
        let free = self.free.entry((fid, unit)).or_default();
        *free = (*free).max(at) + busy;
        *free
    }

    /// Gives `job` to `fid` at `at`: it is carried out when its unit has done it.
    pub(crate) fn submit(&mut self, at: Ps, fid: u8, job: Job) {
        let (unit, busy) = timing::of(&job);
        let done = self.occupy(fid, unit, at, busy);
        self.schedule.at(done, What::Job(fid, job));
    }

    /// A frame is there: the receiver takes it up.
    pub(crate) fn arrive(&mut self, adapter: &Adapter, host: &mut dyn Host, to: u8, flight: &Flight) {
        let headers = &flight.frame.headers[..flight.frame.header_len as usize];
        let payload = match &flight.frame.payload {
            Payload::Empty => SlotPayload::Bytes(&[]),
            Payload::Staged(..) => SlotPayload::Bytes(&flight.bytes),
            Payload::Pieces(n, pieces) => SlotPayload::Pieces(Rid(flight.from), &pieces[..*n as usize]),
        };
        if WireRing::of(adapter.region(), to).push(host, headers, payload, false) {
            self.carry_out(adapter, host, to, Job::Arrive);
        }
    }

    /// Carries out a job whose time has come.
    pub(crate) fn carry_out(&mut self, adapter: &Adapter, host: &mut dyn Host, fid: u8, job: Job) {
        let now = self.schedule.now();
        let mut func = Func::lock(adapter.region(), fid, host);
        runner::trace(&mut self.trace, now, fid, Traced::Job(job));
        let mut step = Step::new(host, now, (adapter.region(), adapter.config()), &mut self.buffers);
        step.careful = true;
        if let Job::Timeout { .. } = job {
            while let Some((qp, kind)) = func.take_timer(now) {
                step.push(Job::Timeout { qp, kind });
            }
        } else {
            dispatch(&job, &mut func, &mut step);
        }
        while let Some(job) = step.buffers.jobs.pop_front() {
            dispatch(&job, &mut func, &mut step);
        }
        let reads = step.reads;
        // What a QP has more to send it sends when the wire has room.
        let wire = self.free.get(&(fid, Unit::Wire)).copied().unwrap_or(0);
        let pace = wire.saturating_sub(timing::BACKLOG);
        while let Some(qp) = func.take_ready() {
            self.submit(now.max(pace), fid, Job::Execute { qp });
        }
        let timer = func.next_timer();
        if let Some(at) = timer.filter(|_| self.timer.insert(fid, timer) != Some(timer)) {
            self.schedule.at(
                at,
                What::Job(
                    fid,
                    Job::Timeout {
                        qp: 0,
                        kind: crate::region::TimerKind::Connection(crate::transport::Timer::Ack),
                    },
                ),
            );
        }
        func.commit(host);
        drop(func);
        self.buffers.committed();
        self.transmit(adapter, fid, reads);
    }

    /// Sends what a step has made: payload from memory, then over the wire.
    fn transmit(&mut self, adapter: &Adapter, fid: u8, reads: bool) {
        let now = self.schedule.now();
        let mut out = std::mem::take(&mut self.buffers.out);
        for frame in out.iter().copied() {
            let headers = &frame.headers[..frame.header_len as usize];
            if let Some(watch) = &mut self.trace {
                let what = Traced::Frame(headers, frame.payload.len());
                watch(&TraceEvent { now, fid, what });
            }
            let Some(to) = adapter.owner(headers) else { continue };
            let len = frame.payload.len() as u64;
            let mut ready = now;
            if reads || matches!(frame.payload, Payload::Pieces(..)) {
                ready = self.occupy(fid, Unit::DmaRead, now, len * timing::PCIE_BYTE) + timing::DMA_READ;
            }
            // The BTH names the peer's QP; a flow keeps its order.
            let bth = headers.len().saturating_sub(frame_tail(headers));
            let peer = hwspec::layout::prefix(headers.get(bth + 5..).unwrap_or_default());
            let last = self.flow.entry((fid, peer)).or_default();
            ready = ready.max(*last);
            *last = ready;
            let bytes = headers.len() as u64 + len + 4 + timing::FRAME_OVERHEAD;
            let sent = self.occupy(fid, Unit::Wire, ready, bytes * timing::WIRE_BYTE);
            let staged = match frame.payload {
                Payload::Staged(at, len) => {
                    self.buffers.staged.get(at as usize..(at + len) as usize).unwrap_or(&[]).to_vec()
                }
                _ => Vec::new(),
            };
            let (_, busy) = timing::of(&Job::Arrive);
            let there = self.occupy(to, Unit::Receiver, sent + timing::ACROSS, busy);
            self.schedule.at(there, What::Frame(to, Box::new(Flight { frame, bytes: staged, from: fid })));
        }
        out.clear();
        self.buffers.out = out;
        self.buffers.delivered();
    }

    /// `len` bytes were written at `at` by `fid`: a program sees them when they are in memory.
    pub(crate) fn written(&mut self, fid: u8, at: Iova, len: u32) {
        let now = self.schedule.now();
        let done = self.occupy(fid, Unit::DmaWrite, now, u64::from(len) * timing::PCIE_BYTE);
        self.schedule.at(done + timing::DMA_WRITE, What::Visible(at, len));
    }
}

/// Bytes from the BTH to the end of `headers`.
fn frame_tail(headers: &[u8]) -> usize {
    const V6: u8 = 0x86;
    let ip = if headers.get(12) == Some(&V6) { 40 } else { 20 };
    headers.len().saturating_sub(14 + ip + 8)
}
