//! Runners: one for each thread that drives the model just now, taken from a small pool.

use super::memory::Scratch;
use devmodel::engine::Runner;
use std::sync::{Mutex, PoisonError, TryLockError};

/// Runners at most; more threads than this at once wait for each other.
const RUNNERS: usize = 8;

/// A runner and what its host keeps.
pub struct Engine {
    /// The runner.
    pub runner: Runner,
    /// What its host keeps from one call to the next.
    pub scratch: Scratch,
}

/// The runners of a process.
#[derive(Default)]
pub struct Engines([Mutex<Option<Box<Engine>>>; RUNNERS]);

impl Engines {
    /// Calls `f` with a runner that nobody else uses.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        for place in &self.0 {
            match place.try_lock() {
                Ok(mut engine) => return f(Self::made(&mut engine)),
                Err(TryLockError::Poisoned(engine)) => return f(Self::made(&mut engine.into_inner())),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let mut engine = self.0[RUNNERS - 1].lock().unwrap_or_else(PoisonError::into_inner);
        f(Self::made(&mut engine))
    }

    #[inline]
    fn made(engine: &mut Option<Box<Engine>>) -> &mut Engine {
        engine.get_or_insert_with(|| Box::new(Engine { runner: Runner::new(), scratch: Scratch::default() }))
    }
}
