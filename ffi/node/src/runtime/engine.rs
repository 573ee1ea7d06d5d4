//! Runners: one for each thread that drives the model just now, taken from a small pool.
#![allow(unsafe_code)]

use super::{memory::Scratch, sys};
use devmodel::{
    engine::Runner,
    wire::{Faults, FaultyWire},
};
use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, Ordering::*},
};

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
pub struct Engines {
    places: [Place; RUNNERS],
    faults: Faults,
}

/// One of them. Taking it is the one locked instruction a call costs; a mutex would take two.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    taken: AtomicBool,
    engine: UnsafeCell<Option<Box<Engine>>>,
}
// SAFETY: the engine is only touched by who set `taken`, see `Taken`.
unsafe impl Sync for Place {}

/// A place that is ours until this is dropped, also when a stage panics.
struct Taken<'a>(&'a Place, Faults);

impl Place {
    #[inline]
    fn take(&self, faults: Faults) -> Option<Taken<'_>> {
        (!self.taken.load(Relaxed) && !self.taken.swap(true, Acquire)).then(|| Taken(self, faults))
    }
}

impl Taken<'_> {
    #[inline]
    fn engine(&mut self) -> &mut Engine {
        // SAFETY: `self.0.taken` is ours, and `&mut self` makes this the only reference.
        unsafe { &mut *self.0.engine.get() }.get_or_insert_with(|| Box::new(Engine::new(self.1)))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl Engine {
    fn new(faults: Faults) -> Self {
        let mut runner = Runner::new();
        if !faults.is_none() {
            runner.set_link(Some(Box::new(FaultyWire::new(faults, std::process::id()))));
        }
        Self { runner, scratch: Scratch::default() }
    }
}

impl Engines {
    /// Runners on whose wire `faults` befall frames.
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// Calls `f` with a runner that nobody else uses.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        match self.places[0].take(self.faults) {
            Some(mut taken) => f(taken.engine()),
            None => f(self.another().engine()),
        }
    }

    #[cold]
    fn another(&self) -> Taken<'_> {
        loop {
            if let Some(taken) = self.places.iter().find_map(|place| place.take(self.faults)) {
                return taken;
            }
            sys::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Engines;
    use std::sync::atomic::{AtomicUsize, Ordering::*};

    #[test]
    fn no_two_threads_have_the_same_runner() {
        let engines = Engines::default();
        let inside = std::array::from_fn::<AtomicUsize, { super::RUNNERS }, _>(|_| AtomicUsize::new(0));
        let places: Vec<usize> =
            engines.places.iter().map(|place| std::ptr::from_ref(place) as usize).collect();
        std::thread::scope(|scope| {
            for _ in 0..2 * super::RUNNERS {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let taken = engines.another();
                        let at = std::ptr::from_ref(taken.0) as usize;
                        let index = places.iter().position(|p| *p == at).expect("one of the places");
                        assert_eq!(inside[index].fetch_add(1, SeqCst), 0, "place {index}");
                        std::thread::yield_now();
                        inside[index].fetch_sub(1, SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_gives_the_runner_back() {
        let engines = Engines::default();
        for _ in 0..2 * super::RUNNERS {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                engines.with(|_| panic!("on purpose"));
            }));
            assert!(panicked.is_err());
        }
        engines.with(|_| {});
    }
}
