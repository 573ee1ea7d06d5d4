//! A plan in progress: selects the faults of each frame and records them.

use super::{
    super::{sched::Ps, timing::Dice},
    Deed, FaultPlan, FrameLine, Timeline,
};
use hwspec::wire::{BthOpcode, Headers};
use std::collections::BTreeMap;

/// Maximum number of frames in a timeline.
const MOST_FRAMES: usize = 1 << 22;

/// One end of a frame's path: a function, or `None` for outside the adapter or for several functions.
pub(super) type Port = Option<u8>;

/// The faults applied to a frame, by number, and their combined effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fate {
    pub faults: Vec<usize>,
    pub lost: bool,
    pub corrupt: bool,
    pub twice: bool,
    pub mark: bool,
    pub delay: Ps,
    pub behind: u32,
    pub pause: Ps,
    /// Duration of effects on its function: stopped, bus refusing, keys unmapped, or program descheduled.
    lasting: BTreeMap<Deed, Ps>,
}

/// A plan in progress.
pub(crate) struct Trial<T> {
    pub plan: FaultPlan,
    /// Start time of the run.
    begin: Ps,
    pub dice: Dice,
    /// For each fault, the number of frames that matched, and the number it was applied to.
    matched: Vec<u64>,
    pub befell: Vec<u64>,
    /// The frames so far.
    pub timeline: Timeline,
    /// End time of each lasting effect on a function.
    until: BTreeMap<(Deed, u8), Ps>,
    /// Reordered frames: sender, number of frames still to overtake it, and the frame.
    pub held: Vec<(Port, u32, T)>,
    /// For each sender and destination queue pair: the PSN after the highest request seen, and the number of messages started.
    messages: BTreeMap<(Port, u32), (u32, u64)>,
}

impl<T> Trial<T> {
    pub(crate) fn new(plan: FaultPlan, begin: Ps) -> Self {
        let (none, dice) = (vec![0; plan.faults.len()], Dice::new(plan.seed));
        Self {
            plan,
            begin,
            dice,
            matched: none.clone(),
            befell: none,
            timeline: Timeline::default(),
            until: BTreeMap::new(),
            held: Vec::new(),
            messages: BTreeMap::new(),
        }
    }

    /// End time of effect `deed` on a function, if it is active at `now`.
    pub(crate) fn until(&self, deed: Deed, fid: u8, now: Ps) -> Option<Ps> {
        self.until.get(&(deed, fid)).copied().filter(|until| *until > now)
    }

    /// Determines and records the faults of a frame with `bytes` of payload that is sent at `now` and leaves at `left`.
    pub(crate) fn sent(
        &mut self,
        (now, left): (Ps, Ps),
        (from, to): (Port, Port),
        headers: &Headers<'_>,
        bytes: u32,
    ) -> (Option<usize>, Fate) {
        let fate = self.fate(now, from, to, Some(headers));
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
            faults: fate.faults.clone(),
        };
        let number = (self.timeline.frames.len() < MOST_FRAMES).then_some(self.timeline.frames.len());
        self.timeline.frames.extend(number.map(|_| line));
        if let Some(fid) = from {
            self.until.extend(fate.lasting.iter().map(|(deed, lasts)| ((*deed, fid), now + lasts)));
        }
        (number, fate)
    }

    /// Records that a frame was processed by its receiver.
    pub(crate) fn arrived(&mut self, number: usize, at: Ps) {
        if let Some(line) = self.timeline.frames.get_mut(number) {
            line.arrived = line.arrived.or(Some(at));
        }
    }

    /// Applies the part of `fate` that is the same on every wire to `frame`, sent by `from`. Returns the frames to send:
    /// `frame` and its copy (none if it is dropped or held back), and the held frames that it was the last to overtake.
    pub(crate) fn go_on(&mut self, fate: &Fate, from: Port, frame: T) -> (Vec<T>, Vec<T>)
    where
        T: Clone,
    {
        if fate.lost {
            return (Vec::new(), Vec::new());
        }
        let passed = self.passed(from);
        if fate.behind > 0 {
            self.held.push((from, fate.behind, frame));
            return (Vec::new(), passed);
        }
        let copy = fate.twice.then(|| frame.clone());
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
    pub(super) fn fate(&mut self, now: Ps, from: Port, to: Port, headers: Option<&Headers<'_>>) -> Fate {
        let bth = headers.map(|headers| headers.bth());
        let (opcode, qp) = (bth.map(|bth| bth.opcode()), bth.map(|bth| bth.dest_qp().0));
        let psn = bth.map(|bth| bth.psn().get());
        let message = match (qp, opcode, psn) {
            (Some(qp), Some(opcode), Some(psn)) => self.message(from, qp, opcode, psn),
            _ => None,
        };
        let us = (now - self.begin.min(now)) as f64 / 1e6;
        let mut fate = Fate::default();
        for (number, (fault, _, named)) in self.plan.faults.iter().enumerate() {
            let is = fault.from.is_none_or(|one| Some(one) == from)
                && fault.to.is_none_or(|one| Some(one) == to)
                && fault.qp.is_none_or(|one| Some(one) == qp)
                && fault.psn.is_none_or(|one| Some(one) == psn)
                && named.is_none_or(|one| Some(one) == opcode)
                && fault.message.is_none_or(|one| Some(one) == message)
                && fault.after_us.is_none_or(|at| us >= at)
                && fault.before_us.is_none_or(|at| us < at);
            // By chance a frame that is dropped or held back has no further faults.
            let settled = headers.is_none() && (fate.lost || fate.behind > 0) && fault.deed != Deed::Delay;
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
            self.befell[number] += 1;
            fate.faults.push(number);
            let lasts = (fault.for_us * 1e6) as Ps;
            match fault.deed {
                Deed::Drop => fate.lost = true,
                Deed::Corrupt => fate.corrupt = true,
                Deed::Duplicate => fate.twice = true,
                Deed::Delay => fate.delay += lasts,
                Deed::Reorder => {
                    let behind =
                        if fault.behind > 0 { fault.behind } else { self.dice.bits() as u32 % 4 + 1 };
                    fate.behind = fate.behind.max(behind);
                }
                Deed::Mark => fate.mark = true,
                Deed::Pause => fate.pause = fate.pause.max(lasts),
                Deed::Stop | Deed::Abort | Deed::Unmap | Deed::Sleep => {
                    let longest = fate.lasting.entry(fault.deed).or_default();
                    *longest = lasts.max(*longest);
                }
            }
        }
        fate
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
