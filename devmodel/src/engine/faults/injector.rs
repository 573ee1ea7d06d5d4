//! Applies a fault plan to frames: selects the faults of each frame and records them.

use super::{
    super::{sched::Ps, timing::Dice},
    FaultKind, FaultPlan, FrameLine, Timeline,
};
use hwspec::wire::{BthOpcode, Headers};
use std::collections::BTreeMap;

/// Maximum number of frames in a timeline.
const MOST_FRAMES: usize = 1 << 22;

/// One end of a frame's path: a function, or `None` for outside the adapter or for several functions.
pub(super) type Port = Option<u8>;

/// The combined effects of the faults applied to a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Effects {
    /// The faults, by number in the plan.
    pub faults: Vec<usize>,
    pub lost: bool,
    pub corrupt: bool,
    pub twice: bool,
    pub mark: bool,
    pub delay: Ps,
    pub behind: u32,
    pub pause: Ps,
    /// Duration of effects on its function: stopped, bus refusing, keys unmapped, or program descheduled.
    lasting: BTreeMap<FaultKind, Ps>,
}

/// Applies a plan and records what it did.
pub(crate) struct FaultInjector<T> {
    pub plan: FaultPlan,
    /// Start time of the run.
    begin: Ps,
    pub dice: Dice,
    /// Number of frames that matched each fault.
    matched: Vec<u64>,
    /// Number of frames that each fault was applied to.
    pub hits: Vec<u64>,
    /// The frames so far.
    pub timeline: Timeline,
    /// End time of each lasting fault of a function.
    until: BTreeMap<(FaultKind, u8), Ps>,
    /// Reordered frames: sender, number of frames still to overtake it, and the frame.
    pub held: Vec<(Port, u32, T)>,
    /// For each sender and destination queue pair: the PSN after the highest request seen, and the number of messages started.
    messages: BTreeMap<(Port, u32), (u32, u64)>,
}

impl<T> FaultInjector<T> {
    pub(crate) fn new(plan: FaultPlan, begin: Ps) -> Self {
        let (none, dice) = (vec![0; plan.faults.len()], Dice::new(plan.seed));
        Self {
            plan,
            begin,
            dice,
            matched: none.clone(),
            hits: none,
            timeline: Timeline::default(),
            until: BTreeMap::new(),
            held: Vec::new(),
            messages: BTreeMap::new(),
        }
    }

    /// End time of a lasting fault of a function, if it is active at `now`.
    pub(crate) fn until(&self, kind: FaultKind, fid: u8, now: Ps) -> Option<Ps> {
        self.until.get(&(kind, fid)).copied().filter(|until| *until > now)
    }

    /// Determines and records the faults of a frame with `bytes` of payload that is sent at `now` and leaves at `left`.
    pub(crate) fn sent(
        &mut self,
        (now, left): (Ps, Ps),
        (from, to): (Port, Port),
        headers: &Headers<'_>,
        bytes: u32,
    ) -> (Option<usize>, Effects) {
        let effects = self.effects(now, from, to, Some(headers));
        let bth = headers.bth();
        let line = FrameLine {
            at: left,
            arrived: None,
            from,
            to,
            opcode: bth.opcode(),
            qp: bth.dest_qp().0,
            psn: bth.psn().get(),
            syndrome: headers.aeth().map(|aeth| aeth.syndrome()),
            bytes,
            faults: effects.faults.clone(),
        };
        let number = (self.timeline.frames.len() < MOST_FRAMES).then_some(self.timeline.frames.len());
        self.timeline.frames.extend(number.map(|_| line));
        if let Some(fid) = from {
            self.until.extend(effects.lasting.iter().map(|(kind, lasts)| ((*kind, fid), now + lasts)));
        }
        (number, effects)
    }

    /// Records that a frame was processed by its receiver.
    pub(crate) fn arrived(&mut self, number: usize, at: Ps) {
        if let Some(line) = self.timeline.frames.get_mut(number) {
            line.arrived = line.arrived.or(Some(at));
        }
    }

    /// Drops, duplicates or holds back `frame`, sent by `from`, as `effects` says. Returns the frames to send:
    /// `frame` and its copy (none if it is dropped or held back), and the held frames that it was the last to overtake.
    pub(crate) fn apply(&mut self, effects: &Effects, from: Port, frame: T) -> (Vec<T>, Vec<T>)
    where
        T: Clone,
    {
        if effects.lost {
            return (Vec::new(), Vec::new());
        }
        let passed = self.passed(from);
        if effects.behind > 0 {
            self.held.push((from, effects.behind, frame));
            return (Vec::new(), passed);
        }
        let copy = effects.twice.then(|| frame.clone());
        (copy.into_iter().chain([frame]).collect(), passed)
    }

    /// Counts a frame sent by `from`; returns the held frames that no further frame has to overtake.
    pub(super) fn passed(&mut self, from: Port) -> Vec<T> {
        for (of, left, _) in &mut self.held {
            *left -= u32::from(*of == from && *left > 0);
        }
        let (due, held) = std::mem::take(&mut self.held).into_iter().partition(|(_, left, _)| *left == 0);
        self.held = held;
        let due: Vec<(Port, u32, T)> = due;
        due.into_iter().map(|(.., what)| what).collect()
    }

    /// The faults of a frame that `from` sends to `to` at `now`; of the transport if it has `headers`.
    pub(super) fn effects(
        &mut self,
        now: Ps,
        from: Port,
        to: Port,
        headers: Option<&Headers<'_>>,
    ) -> Effects {
        let bth = headers.map(|headers| headers.bth());
        let (opcode, qp) = (bth.map(|bth| bth.opcode()), bth.map(|bth| bth.dest_qp().0));
        let psn = bth.map(|bth| bth.psn().get());
        let message = match (qp, opcode, psn) {
            (Some(qp), Some(opcode), Some(psn)) => self.message(from, qp, opcode, psn),
            _ => None,
        };
        let us = (now - self.begin.min(now)) as f64 / 1e6;
        let mut effects = Effects::default();
        for (number, (fault, _, named)) in self.plan.faults.iter().enumerate() {
            let is = fault.from.is_none_or(|one| Some(one) == from)
                && fault.to.is_none_or(|one| Some(one) == to)
                && fault.qp.is_none_or(|one| Some(one) == qp)
                && fault.psn.is_none_or(|one| Some(one) == psn)
                && named.is_none_or(|one| Some(one) == opcode)
                && fault.message.is_none_or(|one| Some(one) == message)
                && fault.after_us.is_none_or(|at| us >= at)
                && fault.before_us.is_none_or(|at| us < at);
            // In a plan by chance, a frame that is dropped or held back gets no further faults.
            let settled =
                headers.is_none() && (effects.lost || effects.behind > 0) && fault.kind != FaultKind::Delay;
            if !is || settled {
                continue;
            }
            self.matched[number] += 1;
            let first = fault.nth.unwrap_or(1);
            let times = fault.times.unwrap_or(if fault.nth.is_some() { 1 } else { u64::MAX });
            let turn = self.matched[number];
            let due = turn >= first && turn - first < times;
            if !due || fault.chance.is_some_and(|chance| self.dice.throw() >= chance) {
                continue;
            }
            self.hits[number] += 1;
            effects.faults.push(number);
            let lasts = (fault.for_us * 1e6) as Ps;
            match fault.kind {
                FaultKind::Drop => effects.lost = true,
                FaultKind::Corrupt => effects.corrupt = true,
                FaultKind::Duplicate => effects.twice = true,
                FaultKind::Delay => effects.delay += lasts,
                FaultKind::Reorder => {
                    let behind =
                        if fault.behind > 0 { fault.behind } else { self.dice.bits() as u32 % 4 + 1 };
                    effects.behind = effects.behind.max(behind);
                }
                FaultKind::Mark => effects.mark = true,
                FaultKind::Pause => effects.pause = effects.pause.max(lasts),
                FaultKind::Stop | FaultKind::Abort | FaultKind::Unmap | FaultKind::Sleep => {
                    let longest = effects.lasting.entry(fault.kind).or_default();
                    *longest = lasts.max(*longest);
                }
            }
        }
        effects
    }

    /// Number of the message that a request belongs to, from 1. A retransmission counts as part of the message started last.
    fn message(&mut self, from: Port, qp: u32, opcode: BthOpcode, psn: u32) -> Option<u64> {
        if opcode.is_response() {
            return None;
        }
        let (next, count) = self.messages.entry((from, qp)).or_insert((psn, 0));
        // 24-bit serial numbers.
        let ahead = psn.wrapping_sub(*next) & 0xff_ffff;
        if ahead < 1 << 23 {
            *next = psn.wrapping_add(1) & 0xff_ffff;
            *count += u64::from(opcode.is_first());
        }
        Some(*count)
    }
}
