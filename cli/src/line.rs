//! The distance between two processors: the time to transfer a cache line from one to the other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::bench::median;

/// Round trips per timed batch: a batch is shorter than the interval between interruptions.
const BATCH: u32 = 1_000;
const BATCHES: u32 = 41;

/// A word with the adjacent lines, because processors fetch lines in pairs.
#[repr(align(256))]
struct Apart(AtomicU32);

/// Nanoseconds from a store on one processor until another that waits for it continues; the median of several batches. `None` if there is
/// only one processor.
pub fn one_way() -> Option<f64> {
    if !thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        return None;
    }
    let (there, back, over) = (Apart(AtomicU32::new(0)), Apart(AtomicU32::new(0)), AtomicBool::new(false));
    let mut batches = thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 1;
            while !over.load(Ordering::Relaxed) {
                if there.0.load(Ordering::Acquire) == next {
                    back.0.store(next, Ordering::Release);
                    next += 1;
                }
            }
        });
        let batch = |from: u32| {
            let start = Instant::now();
            for n in from + 1..=from + BATCH {
                there.0.store(n, Ordering::Release);
                let mut looks = 0u32;
                while back.0.load(Ordering::Acquire) != n {
                    looks += 1;
                    if looks % 10_000 == 0 {
                        // Both threads may currently share a processor.
                        thread::yield_now();
                    }
                }
            }
            start.elapsed().as_nanos() as f64 / f64::from(2 * BATCH)
        };
        let batches: Vec<f64> = (0..BATCHES).map(|i| batch(i * BATCH)).collect();
        over.store(true, Ordering::Relaxed);
        batches
    });
    Some(median(&mut batches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_nanoseconds() {
        let several = thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        let time = one_way();
        assert_eq!(time.is_some(), several);
        // On heavily shared processors it takes as long as the other processes' time slices.
        assert!(time.is_none_or(|ns| (1.0..1e7).contains(&ns)), "{time:?} ns");
    }
}
