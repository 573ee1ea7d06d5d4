//! The scheduler of a bed, which says what happens next and when.
//!
//! All three see the same chip, so what a test expects holds under each: `IRONVERBS_SCHEDULER` chooses one for a whole process.

use super::{Bed, SharedWire, round};
use devmodel::{
    Config,
    engine::{
        Runner,
        spans::Cause,
        timed::Timed,
        timing::{Ns, Rate, TimingProfile},
    },
    mlx5::Job,
    pcie::{doorbell, doorbell_half},
};

/// The variable that chooses the scheduler.
pub const SCHEDULER: &str = "IRONVERBS_SCHEDULER";

/// A scheduler.
pub(super) enum Scheduler {
    /// A job runs until its consequences have happened, as on a node.
    Immediate,
    /// A job at a time, functions in turn: a doorbell is rung before anything of what it asks for is done.
    Stepped,
    /// Jobs and frames are events of the units of a card, as in virtual time, on a card on which nothing takes time.
    Costed(Box<Timed<'static, ()>>),
}

impl Scheduler {
    /// The configuration of an adapter in this process.
    pub(super) fn adjusted(config: Config) -> Config {
        match std::env::var(SCHEDULER).as_deref() {
            Ok("stepped") => Config { budget: 1, ..config },
            _ => config,
        }
    }

    /// The scheduler of this process.
    pub(super) fn chosen(config: &Config, runner: &mut Runner, wire: &SharedWire, now: u64) -> Self {
        match std::env::var(SCHEDULER).as_deref() {
            Err(_) | Ok("immediate") => Self::Immediate,
            Ok("stepped") => {
                runner.defer(true);
                Self::Stepped
            }
            Ok("costed") => {
                runner.defer(true);
                let mut timed = Timed::new(free_card(), vec![0]);
                timed.behave(*config);
                timed.set_link(Some(Box::new(wire.clone())));
                timed.begin(now);
                Self::Costed(Box::new(timed))
            }
            Ok(other) => panic!("{SCHEDULER}: expected immediate, stepped or costed, found {other}"),
        }
    }
}

/// A card on which nothing takes time and nothing is limited.
fn free_card() -> TimingProfile {
    let mut profile = TimingProfile::load("direct-x16").expect("a built-in profile");
    let TimingProfile { card, slot, wire, host, .. } = &mut profile;
    for time in [
        &mut card.send,
        &mut card.send_block,
        &mut card.send_packet,
        &mut card.receive,
        &mut card.receive_packet,
        &mut card.acknowledge,
        &mut card.answer,
        &mut card.miss,
        &mut card.read_answer,
        &mut card.read_answer_byte,
        &mut card.atomic,
        &mut card.complete,
        &mut card.read_pace,
        &mut slot.one_way,
        &mut slot.write,
        &mut wire.propagation,
        &mut wire.switch,
        &mut host.memory,
    ] {
        *time = Ns(0.0);
    }
    (slot.lane_gbps, wire.gbps) = (Rate(1e12), Rate(1e12));
    profile
}

impl Bed {
    /// Writes a doorbell register as an event of the costed scheduler. Returns false if another register or scheduler is meant.
    pub(super) fn rings(&mut self, fid: u8, offset: u64, value: u64, half: bool) -> bool {
        let Scheduler::Costed(timed) = &mut self.scheduler else { return false };
        let job = if half { doorbell_half(offset, value as u32) } else { doorbell(offset, value) };
        match job {
            Some(job @ Job::Doorbell { qpn, .. }) if self.adapter.region().is_present(fid) => {
                let queue = self.queues.qps.iter().find(|(qp, _)| qp.fid == fid && qp.qpn == qpn);
                match queue.map(|(_, queue)| self.memory.get(queue.record + 6, 2)) {
                    Some(&[high, low]) => {
                        timed.ring(Cause::new(self.now), fid, job, u16::from_be_bytes([high, low]));
                    }
                    _ => timed.submit(Cause::new(self.now), fid, job),
                }
                self.settle();
                true
            }
            _ => false,
        }
    }

    /// Has the costed scheduler continue what a written register has begun.
    pub(super) fn written(&mut self, fid: u8) {
        let Self { scheduler: Scheduler::Costed(timed), runner, .. } = self else { return };
        let due = runner.take_due() | 1 << fid;
        for fid in (0..self.adapter.region().functions()).filter(|fid| due & 1 << fid != 0) {
            // Without a frame, the function only continues work that is ready, and learns of timers.
            timed.submit(Cause::new(self.now), fid, Job::Arrive);
        }
        self.settle();
    }

    /// Has the costed scheduler do what it does at this time, so that its next event is a later one.
    pub(super) fn settle(&mut self) {
        if let Scheduler::Costed(_) = self.scheduler {
            self.run();
        }
    }

    /// One round of the scheduler. Returns false if nothing moved.
    pub(super) fn round(&mut self) -> bool {
        let Self { adapter, runner, memory, now, wire, scheduler, .. } = self;
        let Scheduler::Costed(timed) = scheduler else {
            runner.defer(false);
            let any = round(adapter, runner, memory, *now, wire);
            runner.defer(matches!(scheduler, Scheduler::Stepped));
            return any;
        };
        let mut any = false;
        loop {
            let Some(frame) = wire.get().take_late() else { break };
            timed.receive_external(adapter, &frame);
            any = true;
        }
        while timed.next(adapter).is_some_and(|at| at <= *now) {
            timed.step(adapter, memory);
            any = true;
        }
        let kept = if any { None } else { wire.get().take_kept() };
        if let Some(frame) = &kept {
            timed.receive_external(adapter, frame);
        }
        any || kept.is_some()
    }

    /// Receives a whole frame from outside.
    pub fn receive(&mut self, frame: &[u8]) {
        match &mut self.scheduler {
            Scheduler::Costed(timed) => timed.receive_external(&self.adapter, frame),
            _ => self.runner.receive(&self.adapter, &mut self.memory, self.now, frame),
        }
    }
}
