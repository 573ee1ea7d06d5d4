//! Fault plans: parsing and validation.

use super::super::text::{self, TextError};
use crate::wire::{CERTAIN, Faults};
use hwspec::wire::BthOpcode;
use serde::Deserialize;
use std::fmt;

/// The effect of a fault on a frame, or from that frame on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// The frame is dropped.
    #[default]
    Drop,
    /// One of its bits is inverted: the receiver finds a wrong ICRC.
    Corrupt,
    /// It is delivered twice.
    Duplicate,
    /// It is delayed by `for_us`.
    Delay,
    /// It is delivered after the next `behind` frames of its function.
    Reorder,
    /// It is marked as having met congestion (ECN).
    Mark,
    /// Its port sends nothing for `for_us`.
    Pause,
    /// Its function does nothing for `for_us`, as if its host were stopped.
    Stop,
    /// The bus refuses its function's reads and writes for `for_us`.
    Abort,
    /// All keys of its function are invalid for `for_us`: the memory that its queue pairs send from and receive into is not found.
    Unmap,
    /// The program on its function sees no writes for `for_us`, as if it were descheduled.
    Sleep,
}

impl fmt::Display for FaultKind {
    /// As written in a plan.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// A fault of a plan.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Its effect.
    #[serde(rename = "do")]
    pub kind: FaultKind,
    /// Sending function.
    pub from: Option<u8>,
    /// Destination function.
    pub to: Option<u8>,
    /// Destination queue pair.
    pub qp: Option<u32>,
    /// Packet sequence number.
    pub psn: Option<u32>,
    /// Opcode, such as `RcWriteMiddle`.
    pub opcode: Option<String>,
    /// Message that the frame belongs to, counted from 1 per destination queue pair.
    pub message: Option<u64>,
    /// Sent at this time or later, in microseconds from the start of the run.
    pub after_us: Option<f64>,
    /// Sent before this time.
    pub before_us: Option<f64>,
    /// The first matching frame that the fault applies to, from 1.
    pub nth: Option<u64>,
    /// Number of frames it applies to; one if `nth` is given, else all.
    pub times: Option<u64>,
    /// Probability for each of those, 0 to 1.
    pub chance: Option<f64>,
    /// Duration of the effect.
    #[serde(default)]
    pub for_us: f64,
    /// Number of frames that overtake it.
    #[serde(default)]
    pub behind: u32,
}

/// A list of faults, and the seed for their probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    file: String,
    /// Each fault with its line and parsed opcode.
    pub(super) faults: Vec<(Fault, usize, Option<BthOpcode>)>,
    pub(super) seed: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    fault: Vec<Fault>,
}

impl FaultPlan {
    /// A plan without faults: frames are only recorded.
    pub fn none(seed: u64) -> Self {
        Self { file: String::new(), faults: Vec::new(), seed }
    }

    /// The plan that `faults` abbreviate; `which` distinguishes several wires with the same faults.
    pub fn by_chance(faults: &Faults, which: u32) -> Self {
        let Faults { drop, duplicate, reorder, corrupt, delay, seed } = *faults;
        let late = if delay == 0 { 0 } else { CERTAIN };
        let chances = [
            (FaultKind::Drop, drop),
            (FaultKind::Corrupt, corrupt),
            (FaultKind::Reorder, reorder),
            (FaultKind::Duplicate, duplicate),
            (FaultKind::Delay, late),
        ];
        let fault = |(kind, millionths): (FaultKind, u32)| {
            let (chance, for_us) = (Some(f64::from(millionths) / f64::from(CERTAIN)), f64::from(delay) / 1e3);
            (millionths != 0).then(|| (Fault { kind, chance, for_us, ..Fault::default() }, 0, None))
        };
        let faults = chances.into_iter().filter_map(fault).collect();
        Self { file: String::new(), faults, seed: u64::from(seed) << 32 | u64::from(which) }
    }

    /// Parses a plan. `file` is its name, for errors; `seed` determines the random numbers.
    ///
    /// # Errors
    ///
    /// A line is invalid: an unknown key, a number out of range, an unknown opcode.
    pub fn parse(file: &str, text: &str, seed: u64) -> Result<Self, TextError> {
        let Text { fault } = text::toml(file, text)?;
        // Line of each fault.
        let begins = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("[[fault]]"));
        let lines: Vec<usize> = begins.map(|(at, _)| at + 1).collect();
        let mut faults = Vec::new();
        for (number, fault) in fault.into_iter().enumerate() {
            let line = lines.get(number).copied().unwrap_or(1);
            let opcode = match &fault.opcode {
                Some(name) => Some(
                    (0..=u8::MAX)
                        .map(BthOpcode::from_raw)
                        .find(|opcode| opcode.is_known() && format!("{opcode:?}") == *name)
                        .ok_or_else(|| {
                            TextError::expected(file, line, "an opcode, as RcWriteMiddle", name)
                        })?,
                ),
                None => None,
            };
            if let Some((key, least, most, found)) = out_of_range(&fault) {
                let expected = format!("{key} from {least} to {most}");
                return Err(TextError::expected(file, line, &expected, found));
            }
            faults.push((fault, line, opcode));
        }
        if faults.is_empty() {
            return Err(TextError::expected(file, 1, "[[fault]]", "none"));
        }
        Ok(Self { file: file.into(), faults, seed })
    }

    /// The faults, each with its line.
    pub fn faults(&self) -> impl Iterator<Item = (&Fault, usize)> {
        self.faults.iter().map(|(fault, line, _)| (fault, *line))
    }

    /// Rejects faults of memory and programs, which cannot be injected on a wire.
    pub(super) fn only_of_the_wire(&self) -> Result<(), TextError> {
        let other = |(fault, ..): &&(Fault, usize, _)| {
            matches!(fault.kind, FaultKind::Abort | FaultKind::Unmap | FaultKind::Sleep)
        };
        match self.faults.iter().find(other) {
            Some((fault, line, _)) => {
                let expected =
                    "a fault of frames, pause or stop, for this one is of virtual time (run --clock timed)";
                Err(TextError::expected(&self.file, *line, expected, fault.kind))
            }
            None => Ok(()),
        }
    }

    /// An error for the first fault that matched no frame, if any; `found` is the number of frames per fault.
    pub fn without_frame(&self, found: &[u64]) -> Option<TextError> {
        let number = found.iter().position(|found| *found == 0)?;
        let (_, line, _) = self.faults.get(number)?;
        let expected = "a frame as this fault says";
        Some(TextError::expected(&self.file, *line, expected, "none in the whole run"))
    }
}

/// A parameter of a fault that is out of range: its key, minimum, maximum, and value.
fn out_of_range(fault: &Fault) -> Option<(&'static str, f64, f64, f64)> {
    let times = |at: Option<f64>| at.unwrap_or(0.0);
    let lasts = matches!(
        fault.kind,
        FaultKind::Delay
            | FaultKind::Pause
            | FaultKind::Stop
            | FaultKind::Abort
            | FaultKind::Unmap
            | FaultKind::Sleep
    );
    let bounds = [
        ("psn", 0.0, 16_777_215.0, fault.psn.map_or(0.0, f64::from)),
        ("qp", 0.0, 16_777_215.0, fault.qp.map_or(0.0, f64::from)),
        ("message", 1.0, 1e18, fault.message.map_or(1.0, |n| n as f64)),
        ("nth", 1.0, 1e18, fault.nth.map_or(1.0, |n| n as f64)),
        ("times", 1.0, 1e18, fault.times.map_or(1.0, |n| n as f64)),
        ("chance", 0.0, 1.0, fault.chance.unwrap_or(0.0)),
        ("after_us", 0.0, 1e9, times(fault.after_us)),
        ("before_us", 0.0, 1e9, times(fault.before_us)),
        ("for_us", if lasts { 0.001 } else { 0.0 }, if lasts { 1e8 } else { 0.0 }, fault.for_us),
        (
            "behind",
            if fault.kind == FaultKind::Reorder { 1.0 } else { 0.0 },
            if fault.kind == FaultKind::Reorder { 64.0 } else { 0.0 },
            f64::from(fault.behind),
        ),
    ];
    bounds.into_iter().find(|(_, least, most, found)| !(*least..=*most).contains(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        match FaultPlan::parse("plan.toml", text, 1) {
            Ok(_) => "taken".into(),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn what_is_wrong_with_a_plan_is_said_with_its_line() {
        assert_eq!(said("[[fault]]\ndo = \"drop\"\nopcode = \"RcWriteMiddle\"\nnth = 3\n"), "taken");
        assert!(said("[[fault]]\ndo = \"lose\"\n").starts_with("plan.toml:2: unknown variant `lose`"));
        assert!(
            said("[[fault]]\ndo = \"drop\"\nnumber = 3\n").starts_with("plan.toml:3: unknown field `number`")
        );
        assert!(said("[[fault]]\nnth = 3\n").contains("missing field `do`"));
        let two = "[[fault]]\ndo = \"drop\"\n\n[[fault]]\ndo = \"delay\"\n";
        assert_eq!(said(two), "plan.toml:4: expected for_us from 0.001 to 100000000, found 0");
        assert_eq!(
            said("[[fault]]\ndo = \"drop\"\nfor_us = 3.0\n"),
            "plan.toml:1: expected for_us from 0 to 0, found 3"
        );
        assert_eq!(
            said("[[fault]]\ndo = \"drop\"\nopcode = \"WRITE\"\n"),
            "plan.toml:1: expected an opcode, as RcWriteMiddle, found WRITE"
        );
        assert_eq!(
            said("[[fault]]\ndo = \"drop\"\nchance = 1.5\n"),
            "plan.toml:1: expected chance from 0 to 1, found 1.5"
        );
        assert_eq!(
            said("[[fault]]\ndo = \"drop\"\nnth = 0\n"),
            "plan.toml:1: expected nth from 1 to 1000000000000000000, found 0"
        );
        assert_eq!(said(""), "plan.toml:1: expected [[fault]], found none");
    }
}
