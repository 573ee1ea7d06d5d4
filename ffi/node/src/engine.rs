//! A small pool of runners, one for each thread that is currently running the model.
#![allow(unsafe_code)]

use super::scratch::Scratch;
use devmodel::{
    engine::{Runner, faults::FaultWire},
    wire::Faults,
};
use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*, compiler_fence},
};
use sync::{ANY_THREAD, this_thread};

/// Runners in the pool. Additional concurrent threads get a temporary one for the call.
const RUNNERS: usize = 8;
/// Number of successive calls after which a thread becomes the owner of the first runner.
const STEADY: u32 = 64;

/// A runner and its host's state.
pub struct Engine {
    /// The runner.
    pub runner: Runner,
    /// State that the host keeps between calls.
    pub scratch: Scratch,
}

/// The runners of a process. The first belongs to one thread, which makes nearly all calls. That thread takes its runner without a locked
/// instruction, which would wait for all earlier stores.
#[derive(Default)]
pub struct Engines {
    /// The owner of the first runner; 0 if none yet.
    owner: AtomicUsize,
    places: [Place; RUNNERS],
    faults: Faults,
    /// True if the barriers of other programs reach this process.
    barriers: bool,
    /// The last caller other than the owner, and its number of successive calls.
    latest: AtomicUsize,
    row: AtomicU32,
    /// The parked thread, which never becomes the owner.
    parked: AtomicUsize,
}

/// A slot of the pool. Taking it costs one locked instruction; a mutex would cost two.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    taken: AtomicBool,
    engine: UnsafeCell<Option<Box<Engine>>>,
}
// SAFETY: only the thread that set `taken` accesses the engine, through `Taken`.
unsafe impl Sync for Place {}

/// A slot that the thread holds until this is dropped, even if a stage panics.
struct Taken<'a>(&'a Place, Kind);

/// The properties that a new runner is created with.
#[derive(Clone, Copy)]
struct Kind {
    faults: Faults,
    /// True if a single thread uses it, which barriers of other programs reach.
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
        // SAFETY: this thread set `self.0.taken`, and `&mut self` makes this the only reference.
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
            runner.set_link(Some(Box::new(FaultWire::by_chance(&kind.faults, std::process::id()))));
        }
        let scratch = Scratch { steady: kind.steady, ..Scratch::default() };
        Box::new(Self { runner, scratch })
    }
}

impl Engines {
    /// Creates a pool of runners that apply `faults` to their frames. `barriers` is true if barriers of other programs reach this process.
    pub fn new(faults: Faults, barriers: bool) -> Self {
        Self { faults, barriers, ..Self::default() }
    }

    /// Calls `f` with a runner for its exclusive use.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        let first = &self.places[0];
        let mut taken = if self.owner.load(Relaxed) == this_thread() && !first.taken.load(Relaxed) {
            first.taken.store(true, Relaxed);
            // Orders the two accesses against a signal handler in this thread.
            compiler_fence(SeqCst);
            Some(Taken(first, Kind { faults: self.faults, steady: self.barriers }))
        } else {
            self.another()
        };
        let mut spare = None;
        let engine = match &mut taken {
            Some(taken) => taken.engine(),
            // The holders of the pool's runners may be blocked on a stopped program.
            None => spare.insert(Engine::new(Kind { faults: self.faults, steady: false })),
        };
        // The only call of `f`, so that it is inlined here.
        f(engine)
    }

    /// Marks the calling thread as the parked one, which rarely calls.
    pub fn park(&self) {
        self.parked.store(this_thread(), Relaxed);
    }

    /// True if the calling thread is the parked one.
    pub fn is_parked(&self) -> bool {
        self.parked.load(Relaxed) == this_thread()
    }

    #[inline(never)]
    fn another(&self) -> Option<Taken<'_>> {
        if self.owner.load(Relaxed) == 0 {
            self.consider(this_thread());
        }
        let kind = Kind { faults: self.faults, steady: false };
        self.places[1..].iter().find_map(|place| place.take(kind))
    }

    /// Makes thread `me` the owner if it has made enough calls in a row. It takes the first runner from its next call on.
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
