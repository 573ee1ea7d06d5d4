//! Runners: one for each thread that drives the model just now, taken from a small pool.
#![allow(unsafe_code)]

use super::scratch::Scratch;
use devmodel::{
    engine::Runner,
    wire::{Faults, FaultyWire},
};
use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*, compiler_fence},
};
use sync::{ANY_THREAD, this_thread};

/// Runners that are kept; more threads than this at once get one for the call.
const RUNNERS: usize = 8;
/// Calls of one thread in a row that make it the owner of the first.
const STEADY: u32 = 64;

/// A runner and what its host keeps.
pub struct Engine {
    /// The runner.
    pub runner: Runner,
    /// What its host keeps from one call to the next.
    pub scratch: Scratch,
}

/// The runners of a process. The first is for one thread alone, the one that nearly all calls are of; it takes it without a
/// locked instruction, which would wait until all stores before it have arrived.
#[derive(Default)]
pub struct Engines {
    /// The thread that the first is for; 0 is none yet.
    owner: AtomicUsize,
    places: [Place; RUNNERS],
    faults: Faults,
    /// Barriers of others reach us.
    barriers: bool,
    /// The thread that called last of those that are not the owner, and how often in a row.
    latest: AtomicUsize,
    row: AtomicU32,
    /// The thread that is never the owner.
    parked: AtomicUsize,
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
struct Taken<'a>(&'a Place, Kind);

/// What a new runner is made for.
#[derive(Clone, Copy)]
struct Kind {
    faults: Faults,
    /// It is one thread's alone, which barriers reach.
    steady: bool,
}

impl Place {
    #[inline]
    fn take(&self, kind: Kind) -> Option<Taken<'_>> {
        (!self.taken.load(Relaxed) && !self.taken.swap(true, Acquire)).then(|| Taken(self, kind))
    }
}

impl Taken<'_> {
    #[inline]
    fn engine(&mut self) -> &mut Engine {
        // SAFETY: `self.0.taken` is ours, and `&mut self` makes this the only reference.
        unsafe { &mut *self.0.engine.get() }.get_or_insert_with(|| Engine::new(self.1))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl Engine {
    #[cold]
    fn new(kind: Kind) -> Box<Self> {
        let mut runner = Runner::new();
        if !kind.faults.is_none() {
            runner.set_link(Some(Box::new(FaultyWire::new(kind.faults, std::process::id()))));
        }
        let mut scratch = Scratch::default();
        scratch.steady = kind.steady;
        Box::new(Self { runner, scratch })
    }
}

impl Engines {
    /// Runners on whose wire `faults` befall frames, of a process that barriers of others reach or do not.
    pub fn new(faults: Faults, barriers: bool) -> Self {
        Self { faults, barriers, ..Self::default() }
    }

    /// Calls `f` with a runner that nobody else uses.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let first = &self.places[0];
        let mut taken = if self.owner.load(Relaxed) == this_thread() && !first.taken.load(Relaxed) {
            first.taken.store(true, Relaxed);
            // For a signal handler in this thread.
            compiler_fence(SeqCst);
            Some(Taken(first, Kind { faults: self.faults, steady: self.barriers }))
        } else {
            self.another()
        };
        let mut spare = None;
        let engine = match &mut taken {
            Some(taken) => taken.engine(),
            // Those who have them may wait for a program that is stopped.
            None => spare.insert(Engine::new(Kind { faults: self.faults, steady: false })),
        };
        // At one place, so that what is done with an engine is inlined here.
        f(engine)
    }

    /// The calling thread sees to what others left: it is here seldom.
    pub fn park(&self) {
        self.parked.store(this_thread(), Relaxed);
    }

    #[inline(never)]
    fn another(&self) -> Option<Taken<'_>> {
        if self.owner.load(Relaxed) == 0 {
            self.consider(this_thread());
        }
        let kind = Kind { faults: self.faults, steady: false };
        self.places[1..].iter().find_map(|place| place.take(kind))
    }

    /// Makes thread `me` the owner if it is the one that comes all the time. Its next call is the first as such.
    fn consider(&self, me: usize) {
        if self.latest.swap(me, Relaxed) != me {
            self.row.store(0, Relaxed);
        } else if self.row.fetch_add(1, Relaxed) >= STEADY
            && me != ANY_THREAD
            && me != self.parked.load(Relaxed)
        {
            let _ = self.owner.compare_exchange(0, me, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_have_the_same_runner() {
        let engines = Engines::default();
        let inside = std::array::from_fn::<AtomicUsize, { RUNNERS }, _>(|_| AtomicUsize::new(0));
        let places: Vec<usize> =
            engines.places.iter().map(|place| std::ptr::from_ref(place) as usize).collect();
        std::thread::scope(|scope| {
            for _ in 0..2 * RUNNERS {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Some(taken) = engines.another() else { continue };
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
        for _ in 0..2 * STEADY {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                engines.with(|_| panic!("on purpose"));
            }));
            assert!(panicked.is_err());
        }
        engines.with(|_| {});
        assert!(engines.places.iter().all(|place| !place.taken.load(Relaxed)));
        assert!(this_thread() == ANY_THREAD || engines.owner.load(Relaxed) == this_thread());
    }

    #[test]
    fn the_first_runner_is_one_threads_alone() {
        let engines = Engines::default();
        let calls = || (0..2 * STEADY).for_each(|_| engines.with(|_| {}));
        std::thread::scope(|scope| {
            let parked = || {
                engines.park();
                calls();
            };
            scope.spawn(parked).join().unwrap();
        });
        assert_eq!(engines.owner.load(Relaxed), 0, "who parks does not own it");
        calls();
        let owner = engines.owner.load(Relaxed);
        let address = |engine: &mut Engine| std::ptr::from_mut(engine) as usize;
        let first = engines.with(address);
        assert!(owner == 0 || engines.with(|_| engines.with(address)) != first);
        std::thread::scope(|scope| {
            let another =
                || (0..2 * STEADY).for_each(|_| assert!(owner == 0 || engines.with(address) != first));
            scope.spawn(another).join().unwrap();
        });
    }
}
