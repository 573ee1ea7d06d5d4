//! The node's time, without a system call for each reading.
//!
//! On x86-64 this reads the processor's time stamp counter, provided that the kernel itself uses it as clock source. It is compared with
//! the kernel's clock every half millisecond, so that no error accumulates. `clock_gettime` waits for all earlier loads to complete, which
//! costs more than the reading itself.
#![allow(unsafe_code)]

use super::sys;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// A source of CLOCK_MONOTONIC, in nanoseconds.
pub struct Clock {
    /// Counter and nanoseconds when the clock was created. `None` if the counter cannot be used.
    begin: Option<(u64, u64)>,
    /// Odd while the next two members change.
    version: AtomicU64,
    /// Counter and nanoseconds at the last reading of the kernel's clock.
    ticks: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds per tick times 2^32; 0 if not known yet.
    rate: AtomicU64,
}

/// How long (ns) the counter must have run before its rate is computed.
const LONG: u64 = 10_000_000;
/// Ticks between readings of the kernel's clock: half a millisecond at 4 GHz, a millisecond at 2 GHz.
const FRESH: u64 = 2_000_000;

/// Maximum number of ticks that both readings take. If they take longer, the thread was preempted in between, and they are not
/// simultaneous.
const CLOSE: u64 = 4_000;

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has the instruction; where it must not be used, `kept_by_counter` returns false.
    unsafe { std::arch::x86_64::_rdtsc() }
}
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Returns the counter, the kernel's clock right after it, and the ticks that the readings took.
fn both() -> (u64, u64, u64) {
    let (at, nanos) = (ticks(), sys::monotonic_ns());
    (at, nanos, ticks().wrapping_sub(at))
}

/// True if the kernel uses the counter as clock source, so that it is constant-rate and synchronized across processors.
fn kept_by_counter() -> bool {
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .is_ok_and(|name| name.trim() == "tsc")
}

impl Clock {
    /// Creates a clock.
    pub fn new() -> Self {
        let closest = || (0..8).map(|_| both()).min_by_key(|(.., between)| *between).unwrap_or_default();
        let begin = kept_by_counter().then(closest);
        Self {
            begin: begin.map(|(at, nanos, _)| (at, nanos)),
            version: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            rate: AtomicU64::new(0),
        }
    }

    /// The current time. Across threads it may run back by a few nanoseconds.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.begin.is_some() {
            let version = self.version.load(Acquire);
            let (from, nanos, rate) =
                (self.ticks.load(Relaxed), self.nanos.load(Relaxed), self.rate.load(Relaxed));
            fence(Acquire);
            let same = version % 2 == 0 && self.version.load(Relaxed) == version;
            let passed = ticks().wrapping_sub(from);
            if same && passed < FRESH && rate != 0 {
                return nanos + ((passed * rate) >> 32);
            }
        }
        self.ask()
    }

    #[cold]
    fn ask(&self) -> u64 {
        let Some((from, began)) = self.begin else { return sys::monotonic_ns() };
        let (at, nanos, between) = both();
        let (ran, passed) = (at.wrapping_sub(from), nanos.saturating_sub(began));
        // A rate of 2^36 or more means a counter slower than 63 MHz.
        let rate = u64::try_from((u128::from(passed) << 32) / u128::from(ran.max(1))).unwrap_or(u64::MAX);
        if passed < LONG || rate >= 1 << 36 || between > CLOSE {
            return nanos;
        }
        let version = self.version.load(Relaxed);
        let free =
            version % 2 == 0 && self.version.compare_exchange(version, version + 1, Acquire, Relaxed).is_ok();
        if free {
            fence(Release);
            self.ticks.store(at, Relaxed);
            self.nanos.store(nanos, Relaxed);
            self.rate.store(rate, Relaxed);
            self.version.store(version + 2, Release);
        }
        nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_kernels_time() {
        let clock = Clock::new();
        let end = sys::monotonic_ns() + 100_000_000;
        let mut worst = 0;
        loop {
            let before = sys::monotonic_ns();
            let now = clock.now();
            let after = sys::monotonic_ns();
            worst = worst.max(before.saturating_sub(now)).max(now.saturating_sub(after));
            if after > end {
                break;
            }
        }
        assert!(worst < 2_000, "{worst} ns away");
        assert!(clock.begin.is_none() || clock.rate.load(Relaxed) != 0);
    }
}
