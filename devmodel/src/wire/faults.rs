//! A wire that loses, doubles, damages, delays and reorders frames: by chance, but the same chance at every run.

use super::{Link, Verdict};
use crate::engine::timing::Dice;
use std::{collections::VecDeque, fmt, str::FromStr};

/// The faults that befall frames, and how often: each chance in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost.
    pub drop: u32,
    /// Arrives twice.
    pub duplicate: u32,
    /// Arrives behind one to four frames that come after it.
    pub reorder: u32,
    /// A bit behind its link header is inverted.
    pub corrupt: u32,
    /// Every frame arrives so much later, ns. Only where somebody waits for it: on an uplink.
    pub delay: u32,
    /// Where chance starts.
    pub seed: u32,
}

/// A description of faults that says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected faults like drop=1%,duplicate=0.5%,reorder=1%,corrupt=0.1%,delay=20us,seed=7, found '{0}' in them"
)]
pub struct FaultsError(String);

/// One is certain.
const CERTAIN: u32 = 1_000_000;

impl Faults {
    /// True if nothing befalls any frame.
    pub fn is_none(&self) -> bool {
        Self { seed: 0, ..*self } == Self::default()
    }
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = || FaultsError(part.into());
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            match name {
                "drop" => faults.drop = chance(value).ok_or_else(wrong)?,
                "duplicate" => faults.duplicate = chance(value).ok_or_else(wrong)?,
                "reorder" => faults.reorder = chance(value).ok_or_else(wrong)?,
                "corrupt" => faults.corrupt = chance(value).ok_or_else(wrong)?,
                "delay" => faults.delay = nanoseconds(value).ok_or_else(wrong)?,
                "seed" => faults.seed = value.parse().map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chances = [
            ("drop", self.drop),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (name, millionths) in chances.iter().filter(|(_, millionths)| *millionths != 0) {
            write!(f, "{name}={}%,", f64::from(*millionths) / 1e4)?;
        }
        if self.delay != 0 {
            write!(f, "delay={}ns,", self.delay)?;
        }
        write!(f, "seed={}", self.seed)
    }
}

/// `1%` or `0.01`, in millionths.
fn chance(text: &str) -> Option<u32> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 1e4),
        None => (text, 1e6),
    };
    let millionths = number.parse::<f64>().ok()? * scale;
    (0.0..=f64::from(CERTAIN)).contains(&millionths).then_some(millionths.round() as u32)
}

/// `20us`, `1ms`, `500ns`; up to four seconds.
fn nanoseconds(text: &str) -> Option<u32> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u32>().ok()?.checked_mul(unit)
}

/// A wire with faults; see the [module](self).
#[derive(Debug)]
pub struct FaultyWire {
    plan: Faults,
    dice: Dice,
    /// Held back: frames that have to pass first, and the frame.
    behind: Vec<(u32, Vec<u8>)>,
    /// Under way: when they arrive (ps), in order.
    delayed: VecDeque<(u64, Vec<u8>)>,
    befallen: u64,
}

impl FaultyWire {
    /// A wire with the faults of `plan`; `which` tells several with the same plan apart.
    pub fn new(plan: Faults, which: u32) -> Self {
        let dice = Dice::new(u64::from(plan.seed) << 32 | u64::from(which));
        Self { plan, dice, behind: Vec::new(), delayed: VecDeque::new(), befallen: 0 }
    }

    /// How often something befell a frame, delays apart.
    pub fn befallen(&self) -> u64 {
        self.befallen
    }

    fn happens(&mut self, chance: u32) -> bool {
        let happens = chance != 0 && self.dice.bits() % u64::from(CERTAIN) < u64::from(chance);
        self.befallen += u64::from(happens);
        happens
    }

    /// The verdict on `frame`; held frames that it releases go to `more`.
    fn befall(&mut self, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict {
        let mut i = 0;
        while i < self.behind.len() {
            self.behind[i].0 -= 1;
            match self.behind[i].0 {
                0 => more.push(self.behind.swap_remove(i).1),
                _ => i += 1,
            }
        }
        if self.happens(self.plan.drop) {
            return Verdict::Drop;
        }
        if self.happens(self.plan.corrupt) && frame.len() > LINK_HEADER {
            let bit = self.dice.bits() as usize % ((frame.len() - LINK_HEADER) * 8);
            frame[LINK_HEADER + bit / 8] ^= 1 << (bit % 8);
        }
        if self.happens(self.plan.reorder) {
            let behind = self.dice.bits() as u32 % 4 + 1;
            self.behind.push((behind, std::mem::take(frame)));
            return Verdict::Drop;
        }
        if self.happens(self.plan.duplicate) { Verdict::Duplicate } else { Verdict::Deliver }
    }

    /// A frame enters at `now` (ps); those that leave it now go to `out`.
    pub fn enter(&mut self, now: u64, mut frame: Vec<u8>, out: &mut Vec<Vec<u8>>) {
        let mut more = Vec::new();
        let verdict = self.befall(&mut frame, &mut more);
        if verdict == Verdict::Duplicate {
            more.insert(0, frame.clone());
        }
        if verdict != Verdict::Drop {
            more.insert(0, frame);
        }
        if self.plan.delay == 0 {
            out.append(&mut more);
            return;
        }
        let at = now + u64::from(self.plan.delay) * 1000;
        self.delayed.extend(more.into_iter().map(|frame| (at, frame)));
        self.leave(now, out);
    }

    /// Frames that are through at `now` (ps) go to `out`. Returns when the next will be.
    pub fn leave(&mut self, now: u64, out: &mut Vec<Vec<u8>>) -> Option<u64> {
        while self.delayed.front().is_some_and(|(at, _)| *at <= now) {
            out.extend(self.delayed.pop_front().map(|(_, frame)| frame));
        }
        self.delayed.front().map(|(at, _)| *at)
    }
}

/// Bytes of an Ethernet header: damaged there, a frame would go to somebody else.
const LINK_HEADER: usize = 14;

impl Link for FaultyWire {
    fn transmit(&mut self, _from: u8, frame: &mut Vec<u8>, more: &mut Vec<Vec<u8>>) -> Verdict {
        self.befall(frame, more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_written() {
        let plan: Faults =
            "drop=1%,duplicate=0.25%,reorder=0.02,corrupt=0.0001%,delay=20us,seed=9".parse().unwrap();
        assert_eq!((plan.drop, plan.duplicate, plan.reorder, plan.corrupt), (10_000, 2_500, 20_000, 1));
        assert_eq!((plan.delay, plan.seed), (20_000, 9));
        assert_eq!(plan.to_string().parse(), Ok(plan));
        assert!("".parse::<Faults>().unwrap().is_none() && "seed=4".parse::<Faults>().unwrap().is_none());
        for wrong in ["drop", "drop=2", "drop=-1%", "lose=1%", "delay=5", "delay=9s", "seed=x", "drop=nan"] {
            assert!(wrong.parse::<Faults>().is_err(), "{wrong}");
        }
    }

    fn sent(plan: &str, frames: usize) -> Vec<Vec<u8>> {
        let mut wire = FaultyWire::new(plan.parse().unwrap(), 0);
        let mut out = Vec::new();
        (0..frames).for_each(|i| wire.enter(i as u64, vec![(i >> 8) as u8, i as u8, 0, 0], &mut out));
        out
    }

    #[test]
    fn faults_are_as_frequent_as_planned_and_the_same_at_every_run() {
        assert_eq!(sent("drop=1%,seed=1", 10_000), sent("drop=1%,seed=1", 10_000));
        assert_ne!(sent("drop=1%,seed=1", 10_000), sent("drop=1%,seed=2", 10_000));
        let dropped = 10_000 - sent("drop=1%,seed=1", 10_000).len();
        assert!((60..140).contains(&dropped), "{dropped}");
        let doubled = sent("duplicate=1%,seed=1", 10_000).len() - 10_000;
        assert!((60..140).contains(&doubled), "{doubled}");
        assert_eq!(sent("drop=100%", 50).len(), 0);
    }

    #[test]
    fn reordered_frames_all_arrive_but_those_nothing_follows() {
        let out = sent("reorder=10%,seed=3", 1000);
        assert!(out.len() >= 996 && !out.is_sorted());
        let mut sorted = out.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), out.len());
    }

    #[test]
    fn damage_spares_the_link_header() {
        let mut wire = FaultyWire::new("corrupt=100%".parse().unwrap(), 0);
        for _ in 0..100 {
            let mut out = Vec::new();
            wire.enter(0, vec![0; 60], &mut out);
            let ones: u32 = out[0][LINK_HEADER..].iter().map(|b| b.count_ones()).sum();
            assert!(ones == 1 && out[0][..LINK_HEADER] == [0; LINK_HEADER]);
        }
    }

    #[test]
    fn a_delayed_frame_leaves_when_its_time_has_come() {
        let mut wire = FaultyWire::new("delay=1us".parse().unwrap(), 0);
        let mut out = Vec::new();
        wire.enter(5, vec![1], &mut out);
        assert_eq!(wire.leave(1_000_004, &mut out), Some(1_000_005));
        assert!(out.is_empty());
        assert_eq!((wire.leave(1_000_005, &mut out), out), (None, vec![vec![1]]));
    }
}
