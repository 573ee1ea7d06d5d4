//! Measures the processor time of a piece of work, independent of other load.

use std::time::Instant;

/// Processor time of the calling thread.
pub struct Cpu {
    wall: Instant,
    cpu: Option<u64>,
}

/// Returns the nanoseconds that this thread has run (first field of `schedstat`), if the kernel provides it.
fn ran() -> Option<u64> {
    // The kernel updates the value when the thread yields, otherwise only at ticks.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

impl Cpu {
    /// Starts the measurement.
    pub fn start() -> Self {
        Self { wall: Instant::now(), cpu: ran() }
    }

    /// Returns the nanoseconds of processor time since the start; without `schedstat`, wall-clock time.
    pub fn nanos(&self) -> f64 {
        match (self.cpu, ran()) {
            (Some(from), Some(to)) => to.saturating_sub(from) as f64,
            _ => self.wall.elapsed().as_nanos() as f64,
        }
    }
}
