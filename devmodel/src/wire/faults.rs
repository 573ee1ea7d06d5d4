//! Faults of a wire by chance, as `drop=1%,seed=7`: short for a [plan](crate::engine::faults) that any frame is subject to.

use std::{fmt, str::FromStr};

/// Kinds of faults and their probabilities, each in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The frame is dropped.
    pub drop: u32,
    /// It is delivered twice.
    pub duplicate: u32,
    /// It is delivered after one to four of the frames that follow it.
    pub reorder: u32,
    /// One bit after its link header is inverted.
    pub corrupt: u32,
    /// Delay of every frame, in ns. Effective only on an uplink, which waits for delayed frames.
    pub delay: u32,
    /// Seed of the random numbers.
    pub seed: u32,
}

/// A fault description could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected faults like drop=1%,duplicate=0.5%,reorder=1%,corrupt=0.1%,delay=20us,seed=7, found '{0}' in them"
)]
pub struct FaultsError(String);

/// Probability 1.
pub(crate) const CERTAIN: u32 = 1_000_000;

impl Faults {
    /// True if no fault is configured.
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

/// Parses `1%` or `0.01` into millionths.
fn chance(text: &str) -> Option<u32> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(percent) => (percent, 1e4),
        None => (text, 1e6),
    };
    let millionths = number.parse::<f64>().ok()? * scale;
    (0.0..=f64::from(CERTAIN)).contains(&millionths).then_some(millionths.round() as u32)
}

/// Parses `20us`, `1ms` or `500ns`; at most four seconds.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::faults::{FaultWire, LINK_HEADER};

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

    fn wire(plan: &str) -> FaultWire {
        FaultWire::by_chance(&plan.parse().unwrap(), 0)
    }

    /// The frames that leave `wire` at `now`.
    fn left(wire: &mut FaultWire, now: u64) -> Vec<Vec<u8>> {
        wire.leave(now).into_iter().map(|(_, frame)| frame).collect()
    }

    fn sent(plan: &str, frames: usize) -> Vec<Vec<u8>> {
        let mut wire = wire(plan);
        (0..frames).for_each(|i| wire.enter_any(0, vec![(i >> 8) as u8, i as u8, 0, 0]));
        left(&mut wire, 0)
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
        let mut wire = wire("corrupt=100%");
        for _ in 0..100 {
            wire.enter_any(0, vec![0; 60]);
            let out = left(&mut wire, 0);
            let ones: u32 = out[0][LINK_HEADER..].iter().map(|b| b.count_ones()).sum();
            assert!(ones == 1 && out[0][..LINK_HEADER] == [0; LINK_HEADER]);
        }
    }

    #[test]
    fn a_delayed_frame_leaves_when_its_time_has_come() {
        let mut wire = wire("delay=1us");
        wire.enter_any(5, vec![1]);
        assert_eq!((left(&mut wire, 1_000_004), wire.next()), (vec![], Some(1_000_005)));
        assert_eq!((left(&mut wire, 1_000_005), wire.next()), (vec![vec![1]], None));
    }
}
