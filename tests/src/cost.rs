//! The processor time that a piece of work costs, whatever else the machine does meanwhile.

use std::time::Instant;

/// Processor time of the calling thread.
pub struct Cpu {
    wall: Instant,
    cpu: Option<u64>,
}

/// Nanoseconds this thread has run (first field of `schedstat`), where the kernel says.
fn ran() -> Option<u64> {
    // The kernel brings the account up to date when the thread offers the processor, else only at ticks.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

impl Cpu {
    /// Begins to count.
    pub fn start() -> Self {
        Self { wall: Instant::now(), cpu: ran() }
    }

    /// Nanoseconds of processor time since the start; of the clock on the wall where the kernel does not say.
    pub fn nanos(&self) -> f64 {
        match (self.cpu, ran()) {
            (Some(from), Some(to)) => to.saturating_sub(from) as f64,
            _ => self.wall.elapsed().as_nanos() as f64,
        }
    }
}
