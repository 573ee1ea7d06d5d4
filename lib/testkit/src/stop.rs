//! A guard that ends spinning threads.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Sets a flag on drop, including by a panic.
///
/// Held by the body of a scope with threads that run until the flag is set; the crate documentation has the reason and
/// an example.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_body_that_fails_ends_its_threads() {
        crate::alone!();
        let over = AtomicBool::new(false);
        let body = || {
            std::thread::scope(|scope| {
                let _stop = Stop(&over);
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        std::thread::yield_now();
                    }
                });
                panic!("on purpose");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
    }
}
