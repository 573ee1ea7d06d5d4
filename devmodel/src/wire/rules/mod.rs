//! The rules of the reliable connection, asked of frames that somebody captured: of the model, of rxe, of a card.
//!
//! [`Checker`] takes frames in the order of their times and says which break a rule. It shares nothing with the transport of the model but the
//! layouts of the headers, so that it may judge that too. A capture is of the place where frames are sent or before they can get lost: a frame
//! that the capture lacks looks like one that was never sent ([`Checker::lossy`] leaves out what such a gap would break).

mod checker;
mod stream;
#[cfg(test)]
mod tests;

pub use checker::{Checker, Count};

use std::fmt;

/// A rule that packets of a reliable connection keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The invariant CRC is right (annex A17.3.3; IBTA 7.8.1).
    Icrc,
    /// The header can be one: version 0, a known opcode, padding that makes the payload a multiple of four (IBTA 9.2).
    Header,
    /// A request's PSN is the one behind the last, or one that was sent before (IBTA 9.7.2).
    Sequence,
    /// FIRST, MIDDLE and LAST follow one another, or it is an ONLY (IBTA 9.7.4.1.1 and 9.7.4.1.3).
    Order,
    /// FIRST and MIDDLE are as long as the path MTU, LAST has at least a byte, ONLY no more than the MTU (IBTA 9.7.4.1.5).
    Length,
    /// The packets of a WRITE have as many bytes as its RETH says (IBTA 9.7.4.1.5).
    WriteLength,
    /// An acknowledgement is of something that was sent (IBTA 9.7.5.1.1).
    Acknowledge,
    /// The MSN of acknowledge packets never goes back (IBTA 9.7.7.1).
    Msn,
    /// After a NAK for a PSN none follows for the same until that was sent again (IBTA 9.7.5.2.1).
    NakOnce,
    /// After an RNR NAK the request is not sent again before its time (IBTA 9.7.5.2.8).
    RnrWait,
    /// Answers of a READ follow one another and have as many bytes as was asked for (IBTA 9.7.5.1.7 to 9.7.5.1.9).
    ReadAnswer,
    /// A request is sent at most eight times without any progress (IBTA 9.9.2.1: a retry counter has three bits).
    Retries,
    /// A notification of congestion has BECN set (annex A17.9.3).
    Notification,
}

impl Rule {
    /// Its name, and where it is written.
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
    /// Which frame, counted from 1 as packet analysers do.
    pub frame: u64,
    /// When, in nanoseconds.
    pub at: u64,
    /// The rule.
    pub rule: Rule,
    /// The queue pair that the frame is for.
    pub qp: u32,
    /// The value that was expected.
    pub expected: String,
    /// The value that was found.
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
