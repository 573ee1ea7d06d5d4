//! Applies a fault plan to the wire of an adapter in real time: frames are diverted to the consumer that runs the plan, and
//! forwarded from here.

use super::{
    super::{
        sched::{Ps, Schedule},
        text::TextError,
    },
    FaultInjector, FaultKind, FaultPlan, FaultReport, damage,
    injector::{Effects, Port},
};
use crate::{
    Adapter, LinkLayer,
    region::Origin,
    wire::{Faults, Link, Verdict},
};
use hwspec::wire::{Headers, ICRC_SIZE, ip::mark_congested};
use std::collections::BTreeMap;

/// A frame that leaves the wire, preceded by its sender.
pub type Leaving = (Option<u8>, Vec<u8>);

/// A frame in flight: sender, bytes, and number in the timeline.
type Way = (Port, Vec<u8>, Option<usize>);

/// Bytes of an Ethernet header: a frame corrupted there would go to another destination.
pub(crate) const LINK_HEADER: usize = 14;

/// A wire that applies a plan. Frames without faults leave it at once and in order.
pub struct FaultWire {
    /// Start time; all other times are relative to it.
    begin: Ps,
    injector: FaultInjector<Way>,
    schedule: Schedule<Way>,
    /// Times until which functions send nothing.
    paused: BTreeMap<Port, Ps>,
}

impl FaultWire {
    /// Starts applying `plan` at `now`.
    ///
    /// # Errors
    /// The plan has a fault of memory or programs rather than of frames; those exist only in virtual time.
    pub fn new(plan: FaultPlan, now: Ps) -> Result<Self, TextError> {
        plan.only_of_the_wire()?;
        Ok(Self {
            begin: now,
            injector: FaultInjector::new(plan, 0),
            schedule: Schedule::default(),
            paused: BTreeMap::new(),
        })
    }

    /// A wire that any frame may enter, with faults by chance; `which` distinguishes several wires with the same faults.
    pub fn by_chance(faults: &Faults, which: u32) -> Self {
        let injector = FaultInjector::new(FaultPlan::by_chance(faults, which), 0);
        Self { begin: 0, injector, schedule: Schedule::default(), paused: BTreeMap::new() }
    }

    /// Number of faults applied, not counting delays.
    pub fn hits(&self) -> u64 {
        let (plan, hits) = (&self.injector.plan, &self.injector.hits);
        plan.faults().zip(hits).filter(|((fault, _), _)| fault.kind != FaultKind::Delay).map(|(_, n)| n).sum()
    }

    /// Any frame was sent on a wire with faults by chance.
    pub fn enter_any(&mut self, now: Ps, mut frame: Vec<u8>) {
        let effects = self.injector.effects(now, None, None, None);
        if effects.corrupt && frame.len() > LINK_HEADER {
            let bit = self.injector.dice.bits() as usize % ((frame.len() - LINK_HEADER) * 8);
            frame[LINK_HEADER + bit / 8] ^= 1 << (bit % 8);
        }
        let at = now + effects.delay;
        // A dropped frame passes held ones, too.
        let passed = if effects.lost { self.injector.passed(None) } else { Vec::new() };
        passed.into_iter().for_each(|way| self.schedule.at(at, way));
        self.schedule_frames(at, at, &effects, (None, frame, None));
    }

    /// A whole frame was sent.
    pub fn enter(&mut self, adapter: &Adapter, origin: Origin, mut frame: Vec<u8>) {
        let (from, now) = (origin.from, origin.now.saturating_sub(self.begin));
        let to = adapter.owner(&frame);
        let ethernet = adapter.config().link_layer == LinkLayer::Ethernet;
        let parsed = match ethernet {
            true => Headers::parse(&frame),
            false => Headers::parse_route(&frame, frame.len()),
        };
        // A fault of this frame stops or pauses only the frames after it, so check before it is applied.
        let stopped =
            [from, to].into_iter().flatten().filter_map(|fid| self.injector.until(FaultKind::Stop, fid, now));
        let at = stopped.chain(self.paused.get(&from).copied()).fold(now, Ps::max);
        // A plan only matches packets of the transport, so other frames pass.
        let Ok(headers) = parsed else { return self.schedule.at(at, (from, frame, None)) };
        let bytes = frame.len().saturating_sub(headers.payload_start() + ICRC_SIZE) as u32;
        let (number, effects) = self.injector.sent((now, now), (from, to), &headers, bytes);
        if effects.mark && ethernet {
            mark_congested(&mut frame);
        }
        if effects.corrupt {
            damage(adapter.config().link_layer, &mut frame);
        }
        if effects.pause > 0 {
            self.paused.insert(from, now + effects.pause);
        }
        self.schedule_frames(at.max(now + effects.delay), at, &effects, (from, frame, number));
    }

    /// Schedules a frame, and its copy if it is duplicated, for `at`, unless it is dropped or held back. Held frames that it was the last
    /// to overtake leave at `behind`.
    fn schedule_frames(&mut self, at: Ps, behind: Ps, effects: &Effects, way: Way) {
        let (frames, passed) = self.injector.apply(effects, way.0, way);
        frames.into_iter().for_each(|way| self.schedule.at(at, way));
        passed.into_iter().for_each(|way| self.schedule.at(behind, way));
    }

    /// Frames that have left by `now`, in order, each with its sender.
    pub fn leave(&mut self, now: Ps) -> Vec<Leaving> {
        let (mut out, now) = (Vec::new(), now.saturating_sub(self.begin));
        while let Some((_, (from, frame, number))) = self.schedule.take_by(now) {
            if let Some(number) = number {
                self.injector.arrived(number, now);
            }
            out.push((from, frame));
        }
        out
    }

    /// Time at which the next frame leaves.
    pub fn next(&self) -> Option<Ps> {
        self.schedule.peek().map(|(at, _)| self.begin + at)
    }

    /// Ends the plan: returns its outcome and the frames still in flight.
    pub fn end(mut self) -> (FaultReport, Vec<Leaving>) {
        let mut rest = self.leave(Ps::MAX);
        rest.extend(self.injector.held.into_iter().map(|(.., (from, frame, _))| (from, frame)));
        (FaultReport { hits: self.injector.hits, timeline: self.injector.timeline }, rest)
    }
}

impl Link for FaultWire {
    fn transmit(&mut self, _: u8, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict {
        self.enter_any(0, std::mem::take(frame));
        // Functions do not wait for a delay.
        more.extend(self.leave(Ps::MAX).into_iter().map(|(_, frame)| frame));
        Verdict::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config,
        engine::{
            rig::{Link, Rig},
            sim::{Measure, Operation, Plan, Watch, watch},
            timing::TimingProfile,
        },
    };

    /// Frames of WRITEs from function 0 to function 1, as sent.
    fn frames() -> Vec<Vec<u8>> {
        let mut plan =
            Plan::new(Operation::Write, Measure::Bandwidth, TimingProfile::load("direct-x16").unwrap());
        (plan.bytes, plan.iters, plan.mtu) = (1024, 8, Some(1024));
        let mut frames = Vec::new();
        let mut take = |_, whole: &[u8]| frames.push(whole.to_vec());
        watch(&plan, Watch { frames: Some(&mut take), ..Watch::default() }).unwrap();
        frames.retain(|frame| frame.len() > 1024);
        assert_eq!(frames.len(), 8);
        frames
    }

    /// Leave time and number of each frame, if one enters every microsecond from 100 us on.
    fn left(faults: &str) -> Vec<(Ps, Option<usize>)> {
        let (rig, frames) = (Rig::new(Config::default(), Link::default()), frames());
        let (begin, us) = (5_000_000_000, 1_000_000);
        let plan = FaultPlan::parse("plan.toml", faults, 1).unwrap();
        let mut wire = FaultWire::new(plan, begin).unwrap();
        let mut out = Vec::new();
        let mut take = |wire: &mut FaultWire, at: Ps| {
            let known = |frame: &Vec<u8>| frames.iter().position(|one| one == frame);
            let which = wire.leave(begin + at * us).into_iter().map(|(from, frame)| {
                assert_eq!(from, Some(0));
                (at, known(&frame))
            });
            out.extend(which);
        };
        for at in 100..130 {
            if let Some(frame) = frames.get(at as usize - 100) {
                let origin = Origin { from: Some(0), now: begin + at * us };
                wire.enter(&rig.adapter, origin, frame.clone());
            }
            take(&mut wire, at);
        }
        assert_eq!(wire.next(), None);
        out
    }

    /// The frames that leave when they enter, except for those in `other`.
    fn all_but(other: &[(usize, Ps)]) -> Vec<(Ps, Option<usize>)> {
        let usual = (0..8).filter(|which| other.iter().all(|(one, _)| one != which));
        let mut all: Vec<_> = usual.map(|which| (100 + which as Ps, Some(which))).collect();
        all.extend(other.iter().filter(|(_, at)| *at != 0).map(|(which, at)| (*at, Some(*which))));
        all.sort_by_key(|(at, _)| *at);
        all
    }

    #[test]
    fn frames_leave_as_the_plan_says() {
        let of = |kind: &str| format!("[[fault]]\ndo = {kind}\n");
        // Frames of another function are unaffected.
        assert_eq!(left(&of("\"drop\"\nfrom = 3")), all_but(&[]));
        assert_eq!(left(&of("\"drop\"\nfrom = 0\nto = 1\nnth = 3")), all_but(&[(2, 0)]));
        assert_eq!(left(&of("\"delay\"\nmessage = 4\nfor_us = 10")), all_but(&[(3, 113)]));
        assert_eq!(left(&of("\"drop\"\nafter_us = 103\nbefore_us = 105")), all_but(&[(3, 0), (4, 0)]));
        // Later frames wait and keep their order.
        for kind in ["pause", "stop"] {
            let expected = [(3, 112), (4, 112), (5, 112), (6, 112), (7, 112)];
            assert_eq!(left(&of(&format!("\"{kind}\"\nnth = 3\nfor_us = 10"))), all_but(&expected), "{kind}");
        }
        assert_eq!(left(&of("\"reorder\"\nnth = 3\nbehind = 2")), all_but(&[(2, 104)]));
        // The frame that was overtaken does not take the delay of the one that overtook it.
        let both = of("\"reorder\"\nnth = 3\nbehind = 1") + &of("\"delay\"\nnth = 4\nfor_us = 10");
        assert_eq!(left(&both), all_but(&[(2, 103), (3, 113)]));
        let mut twice = all_but(&[]);
        twice.insert(3, (102, Some(2)));
        assert_eq!(left(&of("\"duplicate\"\nnth = 3")), twice);
        for kind in ["corrupt", "mark"] {
            let mut changed = all_but(&[]);
            changed[2].1 = None;
            assert_eq!(left(&of(&format!("\"{kind}\"\nnth = 3"))), changed, "{kind}");
        }
    }

    #[test]
    fn what_is_held_at_the_end_is_not_lost() {
        let (rig, frames) = (Rig::new(Config::default(), Link::default()), frames());
        let plan = "[[fault]]\ndo = \"reorder\"\nnth = 1\nbehind = 9\n[[fault]]\ndo = \"delay\"\nnth = 2\nfor_us = 9\n";
        let mut wire = FaultWire::new(FaultPlan::parse("plan.toml", plan, 1).unwrap(), 0).unwrap();
        for frame in &frames[..3] {
            wire.enter(&rig.adapter, Origin { from: Some(0), now: 0 }, frame.clone());
        }
        assert_eq!(wire.leave(0).len(), 1);
        let (found, rest) = wire.end();
        assert_eq!((found.hits, rest.len()), (vec![1, 1], 2));
    }
}
