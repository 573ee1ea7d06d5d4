//! Bookkeeping of lent memory, and the limit on how much more may be lent.

use super::file::PAGE;
use devmodel::missing::Watched;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Fixed cost of moving a range, in bytes that could be moved in the same time.
const EACH: u64 = 128 << 10;
/// Bytes that may be moved in a burst, and per second. A program that registers memory for every transfer thus spends only a few percent of
/// its time on moving it.
const CREDIT: u64 = 128 << 20;
const INCOME: u64 = 16 << 20;
/// Picoseconds per second.
const SECOND: u64 = 1_000_000_000_000;

/// A range of this process's memory that is in the arena.
pub struct Range {
    pub start: u64,
    pub end: u64,
    /// First page of its block.
    pub page: u32,
    /// Registrations that touch it.
    pub users: usize,
    /// Keeps the program alive if the file is truncated: it then reads zeros.
    pub _watched: Watched,
}

impl Range {
    pub fn offset(&self) -> u64 {
        u64::from(self.page) * PAGE as u64
    }

    pub fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// The lent ranges.
pub struct Lent {
    /// True if memory is lent at all.
    pub enabled: bool,
    ranges: Mutex<Ranges>,
}

#[derive(Default)]
pub struct Ranges {
    pub list: Vec<Range>,
    /// True once the kernel has refused to move memory.
    pub over: bool,
    pub times: u32,
    pub credit: Credit,
}

/// The number of bytes that may still be moved, and when it was computed (ps).
#[derive(Default)]
pub struct Credit {
    pub bytes: u64,
    pub at: u64,
}

impl Credit {
    /// True if `len` bytes may be moved to the arena and back.
    pub fn allows(&mut self, len: u64, now: u64) -> bool {
        let income = match self.at {
            0 => CREDIT,
            at => (u128::from(now.saturating_sub(at)) * u128::from(INCOME) / u128::from(SECOND)) as u64,
        };
        (self.bytes, self.at) = ((self.bytes + income).min(CREDIT), now.max(1));
        len + EACH <= self.bytes
    }

    /// Charges for moving `len` bytes.
    pub fn take(&mut self, len: u64) {
        self.bytes = self.bytes.saturating_sub(len + EACH);
    }
}

impl Lent {
    /// Starts without lent ranges. Nothing is ever lent unless `enabled`.
    pub fn new(enabled: bool) -> Self {
        let off = std::env::var_os("IRONVERBS_LEND").is_some_and(|v| v == "0");
        Self { enabled: enabled && !off, ranges: Mutex::default() }
    }

    /// Keeps lent ranges lent until the process exits.
    pub fn keep(&self) {
        std::mem::forget(std::mem::take(&mut self.ranges().list));
    }

    pub fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes lent.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.ranges().bytes()
    }
}

impl Ranges {
    pub fn bytes(&self) -> u64 {
        self.list.iter().map(Range::len).sum()
    }

    /// The ranges that overlap `start..end`.
    pub fn touching(&mut self, start: u64, end: u64) -> impl Iterator<Item = &mut Range> {
        self.list.iter_mut().filter(move |range| range.start < end && start < range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::MILLI;

    #[test]
    fn repeated_registrations_move_little_memory() {
        let (mut credit, mib) = (Credit::default(), 1 << 20);
        let at = |ms: u64| (5_000 + ms) * MILLI;
        let taken = |credit: &mut Credit, ms| {
            let mut count = 0;
            while credit.allows(16 * mib, at(ms)) {
                credit.take(16 * mib);
                count += 1;
            }
            count
        };
        assert_eq!(taken(&mut credit, 0), 7);
        assert_eq!(taken(&mut credit, 1), 0);
        assert_eq!(taken(&mut credit, 1000), 1);
        // Credit is capped at its limit, and time may run backwards.
        assert_eq!(taken(&mut credit, 100_000), 7);
        assert_eq!(taken(&mut credit, 0), 0);
        assert!(credit.allows(4096, at(0)));
    }
}
