//! A plan under way on the wire of an adapter in this machine's time: frames are diverted to whoever tries the plan, and brought on from here.

use super::{
    super::{
        sched::{Ps, Schedule},
        text::TextError,
    },
    Deed, FaultPlan, Found, Trial, damage,
    trial::Port,
};
use crate::{Adapter, LinkLayer, engine::switch::Destination, region::Left};
use hwspec::wire::{Headers, ICRC_SIZE, ip::mark_congested};
use std::collections::BTreeMap;

/// A frame that leaves the wire, behind who sent it.
pub type Leaving = (Option<u8>, Vec<u8>);

/// A frame on its way: who sent it, its bytes, its number in the timeline.
type Way = (Port, Vec<u8>, Option<usize>);

/// A wire on which a plan is tried. Frames that nothing befalls leave it at once, in the order in which they came.
pub struct TrialWire {
    /// When it began: all other times count from then.
    begin: Ps,
    trial: Trial<Way>,
    schedule: Schedule<Way>,
    /// Until when functions send nothing.
    paused: BTreeMap<Port, Ps>,
}

impl TrialWire {
    /// Begins to try `plan` at `now`.
    ///
    /// # Errors
    /// The plan has a fault that is no frame's, of memory or programs: those are of virtual time.
    pub fn new(plan: FaultPlan, now: Ps) -> Result<Self, TextError> {
        plan.only_of_the_wire()?;
        Ok(Self {
            begin: now,
            trial: Trial::new(plan, 0),
            schedule: Schedule::default(),
            paused: BTreeMap::new(),
        })
    }

    /// A frame was sent, whole.
    pub fn enter(&mut self, adapter: &Adapter, left: Left, mut frame: Vec<u8>) {
        let (from, now) = (left.from, left.now.saturating_sub(self.begin));
        let to = match adapter.destination(&frame) {
            Destination::Function(fid) => Some(fid),
            Destination::Group | Destination::Uplink => None,
        };
        let ethernet = adapter.config().link_layer == LinkLayer::Ethernet;
        let parsed = match ethernet {
            true => Headers::parse(&frame),
            false => Headers::parse_route(&frame, frame.len()),
        };
        // A fault that this frame meets stops or pauses those behind it, so we look before it is tried.
        let stopped =
            [from, to].into_iter().flatten().filter_map(|fid| self.trial.until(Deed::Stop, fid, now));
        let at = stopped.chain(self.paused.get(&from).copied()).fold(now, Ps::max);
        // A plan names packets of the transport, so other frames pass.
        let Ok(headers) = parsed else { return self.schedule.at(at, (from, frame, None)) };
        let bytes = frame.len().saturating_sub(headers.payload_start() + ICRC_SIZE) as u32;
        let (number, fate) = self.trial.sent((now, now), (from, to), &headers, bytes);
        if fate.mark && ethernet {
            mark_congested(&mut frame);
        }
        if fate.corrupt {
            damage(adapter.config().link_layer, &mut frame);
        }
        if fate.pause > 0 {
            self.paused.insert(from, now + fate.pause);
        }
        let (frames, passed) = self.trial.go_on(&fate, from, (from, frame, number));
        for frame in frames {
            self.schedule.at(at.max(now + fate.delay), frame);
        }
        for late in passed {
            self.schedule.at(at, late);
        }
    }

    /// Frames that leave at `now` or have left before, in order, each with its sender.
    pub fn leave(&mut self, now: Ps) -> Vec<Leaving> {
        let (mut out, now) = (Vec::new(), now.saturating_sub(self.begin));
        while self.schedule.peek().is_some_and(|(at, _)| at <= now) {
            let Some((from, frame, number)) = self.schedule.drop_next() else { break };
            if let Some(number) = number {
                self.trial.arrived(number, now);
            }
            out.push((from, frame));
        }
        out
    }

    /// When the next frame leaves.
    pub fn next(&self) -> Option<Ps> {
        self.schedule.peek().map(|(at, _)| self.begin + at)
    }

    /// The end: what came of the plan, and the frames that are still under way.
    pub fn end(mut self) -> (Found, Vec<Leaving>) {
        let mut rest = self.leave(Ps::MAX);
        rest.extend(self.trial.held.into_iter().map(|(.., (from, frame, _))| (from, frame)));
        (Found { befell: self.trial.befell, timeline: self.trial.timeline }, rest)
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
            timing::Profile,
        },
    };

    /// Frames of WRITEs from function 0 to function 1, as they were sent.
    fn frames() -> Vec<Vec<u8>> {
        let mut plan = Plan::new(Operation::Write, Measure::Bandwidth, Profile::load("direct-x16").unwrap());
        (plan.bytes, plan.iters, plan.mtu) = (1024, 8, Some(1024));
        let mut frames = Vec::new();
        let mut take = |_, whole: &[u8]| frames.push(whole.to_vec());
        watch(&plan, Watch { frames: Some(&mut take), ..Watch::default() }).unwrap();
        frames.retain(|frame| frame.len() > 1024);
        assert_eq!(frames.len(), 8);
        frames
    }

    /// When each of them leaves and which it is, if one enters in each microsecond from 100 us on.
    fn left(faults: &str) -> Vec<(Ps, Option<usize>)> {
        let (rig, frames) = (Rig::new(Config::default(), Link::default()), frames());
        let (begin, us) = (5_000_000_000, 1_000_000);
        let plan = FaultPlan::parse("plan.toml", faults, 1).unwrap();
        let mut wire = TrialWire::new(plan, begin).unwrap();
        let mut out = Vec::new();
        let mut take = |wire: &mut TrialWire, at: Ps| {
            let known = |frame: &Vec<u8>| frames.iter().position(|one| one == frame);
            let which = wire.leave(begin + at * us).into_iter().map(|(from, frame)| {
                assert_eq!(from, Some(0));
                (at, known(&frame))
            });
            out.extend(which);
        };
        for at in 100..130 {
            if let Some(frame) = frames.get(at as usize - 100) {
                let left = Left { from: Some(0), now: begin + at * us };
                wire.enter(&rig.adapter, left, frame.clone());
            }
            take(&mut wire, at);
        }
        assert_eq!(wire.next(), None);
        out
    }

    /// The frames that leave when they enter, but for those of `other`.
    fn all_but(other: &[(usize, Ps)]) -> Vec<(Ps, Option<usize>)> {
        let usual = (0..8).filter(|which| other.iter().all(|(one, _)| one != which));
        let mut all: Vec<_> = usual.map(|which| (100 + which as Ps, Some(which))).collect();
        all.extend(other.iter().filter(|(_, at)| *at != 0).map(|(which, at)| (*at, Some(*which))));
        all.sort_by_key(|(at, _)| *at);
        all
    }

    #[test]
    fn frames_leave_as_the_plan_says() {
        let of = |deed: &str| format!("[[fault]]\ndo = {deed}\n");
        // Nothing befalls frames of another function.
        assert_eq!(left(&of("\"drop\"\nfrom = 3")), all_but(&[]));
        assert_eq!(left(&of("\"drop\"\nfrom = 0\nto = 1\nnth = 3")), all_but(&[(2, 0)]));
        assert_eq!(left(&of("\"delay\"\nmessage = 4\nfor_us = 10")), all_but(&[(3, 113)]));
        assert_eq!(left(&of("\"drop\"\nafter_us = 103\nbefore_us = 105")), all_but(&[(3, 0), (4, 0)]));
        // Frames behind it wait, and keep their order.
        for deed in ["pause", "stop"] {
            let expected = [(3, 112), (4, 112), (5, 112), (6, 112), (7, 112)];
            assert_eq!(left(&of(&format!("\"{deed}\"\nnth = 3\nfor_us = 10"))), all_but(&expected), "{deed}");
        }
        assert_eq!(left(&of("\"reorder\"\nnth = 3\nbehind = 2")), all_but(&[(2, 104)]));
        let mut twice = all_but(&[]);
        twice.insert(3, (102, Some(2)));
        assert_eq!(left(&of("\"duplicate\"\nnth = 3")), twice);
        for deed in ["corrupt", "mark"] {
            let mut changed = all_but(&[]);
            changed[2].1 = None;
            assert_eq!(left(&of(&format!("\"{deed}\"\nnth = 3"))), changed, "{deed}");
        }
    }

    #[test]
    fn what_is_held_at_the_end_is_not_lost() {
        let (rig, frames) = (Rig::new(Config::default(), Link::default()), frames());
        let plan = "[[fault]]\ndo = \"reorder\"\nnth = 1\nbehind = 9\n[[fault]]\ndo = \"delay\"\nnth = 2\nfor_us = 9\n";
        let mut wire = TrialWire::new(FaultPlan::parse("plan.toml", plan, 1).unwrap(), 0).unwrap();
        for frame in &frames[..3] {
            wire.enter(&rig.adapter, Left { from: Some(0), now: 0 }, frame.clone());
        }
        assert_eq!(wire.leave(0).len(), 1);
        let (found, rest) = wire.end();
        assert_eq!((found.befell, rest.len()), (vec![1, 1], 2));
    }
}
