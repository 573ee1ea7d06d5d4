//! Rules of the reliable connection, checked on captured frames: of the model, of rxe, or of a real adapter.
//!
//! [`Checker`] takes frames in order of time and reports those that break a rule. It shares only the header layouts with the model's
//! transport, so that it can judge the model too. Capture frames where they are sent, or before they can get lost: a frame missing from
//! the capture looks like one that was never sent ([`Checker::lossy`] skips the checks that such a gap would break).

mod checker;
mod stream;
#[cfg(test)]
mod tests;

pub use checker::{Checker, Count};

use std::fmt;

/// A rule for packets of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The invariant CRC is correct (annex A17.3.3; IBTA 7.8.1).
    Icrc,
    /// The header is valid: version 0, a known opcode, padding that makes the payload a multiple of four (IBTA 9.2).
    Header,
    /// A request's PSN is the successor of the last one, or was sent before (IBTA 9.7.2).
    Sequence,
    /// FIRST, MIDDLE and LAST follow one another, or the packet is an ONLY (IBTA 9.7.4.1.1 and 9.7.4.1.3).
    Order,
    /// FIRST and MIDDLE have the length of the path MTU, LAST has at least one byte, ONLY at most the MTU (IBTA 9.7.4.1.5).
    Length,
    /// The packets of a WRITE have as many bytes in total as its RETH says (IBTA 9.7.4.1.5).
    WriteLength,
    /// An acknowledgement refers to a request that was sent (IBTA 9.7.5.1.1).
    Acknowledge,
    /// The MSN of acknowledge packets never decreases (IBTA 9.7.7.1).
    Msn,
    /// After a NAK no other NAK for the same PSN is sent until that PSN was retransmitted (IBTA 9.7.5.2.1).
    NakOnce,
    /// After an RNR NAK the request is not retransmitted before the RNR timer expires (IBTA 9.7.5.2.8).
    RnrWait,
    /// READ responses follow one another and have as many bytes as were requested (IBTA 9.7.5.1.7 to 9.7.5.1.9).
    ReadAnswer,
    /// A request is sent at most eight times without progress (IBTA 9.9.2.1: the retry counter has three bits).
    Retries,
    /// A congestion notification packet has BECN set (annex A17.9.3).
    Notification,
}

impl Rule {
    /// Its name, and the section that defines it.
    pub fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Icrc => ("icrc", "annex A17.3.3"),
            Self::Header => ("header", "IBTA 9.2"),
            Self::Sequence => ("sequence", "IBTA 9.7.2"),
            Self::Order => ("order", "IBTA 9.7.4.1.3"),
            Self::Length => ("length", "IBTA 9.7.4.1.5"),
            Self::WriteLength => ("write length", "IBTA 9.7.4.1.5"),
            Self::Acknowledge => ("acknowledge", "IBTA 9.7.5.1.1"),
            Self::Msn => ("msn", "IBTA 9.7.7.1"),
            Self::NakOnce => ("nak once", "IBTA 9.7.5.2.1"),
            Self::RnrWait => ("rnr wait", "IBTA 9.7.5.2.8"),
            Self::ReadAnswer => ("read answer", "IBTA 9.7.5.1.7"),
            Self::Retries => ("retries", "IBTA 9.9.2.1"),
            Self::Notification => ("notification", "annex A17.9.3"),
        }
    }
}

/// A frame that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Frame number, counted from 1 as in packet analysers.
    pub frame: u64,
    /// Time, in nanoseconds.
    pub at: u64,
    /// The rule.
    pub rule: Rule,
    /// The frame's destination queue pair.
    pub qp: u32,
    /// The expected value.
    pub expected: String,
    /// The value found.
    pub found: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, section) = self.rule.name();
        write!(
            f,
            "frame {}, {:.3} us, for {:#x}: {name}: expected {}, found {} ({section})",
            self.frame,
            self.at as f64 / 1e3,
            self.qp,
            self.expected,
            self.found
        )
    }
}
