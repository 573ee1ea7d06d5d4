//! Model checking of the lock: every possible order of its loads and stores, up to a number of preemptions.
//!
//! [`Contender::barrier`] is a fence in the calling thread, for the reason given in [`bias`]. A death is a thread that
//! ends without any further action. A thread that finds it dead sees its stores, as the kernel guarantees.
#![allow(unsafe_code)]

use super::*;
use loom::{
    cell::UnsafeCell,
    sync::{Arc, atomic::AtomicU32},
    thread,
};

/// A lock and the data that it protects: a number that is odd during an update. loom itself reports unordered
/// concurrent accesses.
struct Guarded {
    lock: Lock,
    work: UnsafeCell<u32>,
    /// Bit mask of dead parties.
    dead: AtomicU32,
}

impl Guarded {
    fn begin(&self) {
        self.work.with_mut(|work| {
            // SAFETY: loom checks that there is no concurrent access.
            let work = unsafe { &mut *work };
            assert_eq!(*work % 2, 0, "two are inside, or what a dead one left was not repaired");
            *work += 1;
        });
    }

    fn end(&self) {
        self.work.with_mut(|work| {
            // SAFETY: loom checks that there is no concurrent access.
            let work = unsafe { &mut *work };
            assert_eq!(*work % 2, 1, "two are inside");
            *work += 1;
        });
    }
}

/// One thread of one party.
#[derive(Clone)]
struct Runner {
    shared: Arc<Guarded>,
    me: u16,
    steady: bool,
    /// True for a copy in a child of fork.
    forked: bool,
    /// True if it considers every holder that it waits for to be stopped.
    hopeless: bool,
}

impl Contender for Runner {
    fn party(&self) -> Party {
        Party(self.me)
    }
    fn steady(&self) -> Option<Party> {
        (self.steady && !self.forked).then_some(Party(self.me))
    }
    fn barrier(&mut self) {
        loom::sync::atomic::fence(SeqCst);
    }
    fn alive(&mut self, party: Party) -> bool {
        self.shared.dead.load(Acquire) & 1 << party.0 == 0
    }
    fn relax(&mut self, _: Party, _: u32) -> bool {
        // Other threads run while this one spins.
        self.hopeless
    }
}

impl Runner {
    fn work(&self, holding: Holding<'_>, dead: Dead) {
        if dead.is_any() {
            if self.is_half_done() {
                self.shared.end();
            }
            holding.repaired();
        }
        self.shared.begin();
        self.shared.end();
        holding.release();
    }

    fn take(&mut self) {
        let shared = self.shared.clone();
        let (holding, dead) = shared.lock.acquire(self);
        self.work(holding, dead);
    }

    fn take_unless_stopped(&mut self) -> bool {
        let shared = self.shared.clone();
        let taken = shared.lock.acquire_with(self, Patience::UntilStopped);
        let is_taken = taken.is_some();
        if let Some((holding, dead)) = taken {
            self.work(holding, dead);
        }
        is_taken
    }

    fn try_to_take(&mut self) -> bool {
        let shared = self.shared.clone();
        let taken = shared.lock.try_acquire(self);
        let is_taken = taken.is_some();
        if let Some(holding) = taken {
            self.work(holding, Dead::default());
        }
        is_taken
    }

    /// True if a dead party left its work half done. The caller holds the lock.
    fn is_half_done(&self) -> bool {
        // SAFETY: loom checks that there is no concurrent access.
        self.shared.work.with(|work| unsafe { *work } % 2 == 1)
    }

    fn die(&self) {
        self.shared.dead.fetch_or(1 << self.me, Release);
    }
}

/// Runs `test` in every order with up to `preemptions` preemptions, on a lock owned by steady runner 1. Its arguments
/// are that runner, another steady one, and one that never owns a lock.
fn model(preemptions: usize, test: impl Fn([Runner; 3]) + Sync + Send + 'static) {
    crate::checker::up_to(preemptions).check(move || {
        let shared =
            Arc::new(Guarded { lock: Lock::default(), work: UnsafeCell::new(0), dead: AtomicU32::new(0) });
        let runner =
            |me, steady| Runner { shared: shared.clone(), me, steady, forked: false, hopeless: false };
        let mut owner = runner(1, true);
        owner.take();
        assert_eq!(shared.lock.owner.load(Relaxed) & PARTY, 1, "who is steady owns it at once here");
        test([owner, runner(2, true), runner(3, false)]);
    });
}

#[test]
fn an_owner_and_the_next_one_exclude_each_other() {
    model(3, |[mut first, mut second, _]| {
        let second = thread::spawn(move || {
            // Takes the lock away, becomes the owner, and takes it as the owner.
            (0..3).for_each(|_| second.take());
        });
        first.try_to_take();
        second.join().unwrap();
    });
}

#[test]
fn two_thieves_and_an_owner_exclude_each_other() {
    model(2, |[mut first, mut second, mut third]| {
        let first = thread::spawn(move || first.try_to_take());
        let second = thread::spawn(move || second.try_to_take());
        third.try_to_take();
        first.join().unwrap();
        second.join().unwrap();
        assert!(third.try_to_take(), "nobody has it");
    });
}

#[test]
fn the_work_of_an_owner_that_died_inside_is_repaired_once() {
    model(2, |[mut first, mut second, mut third]| {
        let first = thread::spawn(move || {
            let shared = first.shared.clone();
            let (_, dead) = shared.lock.acquire(&mut first);
            assert!(!dead.is_any());
            shared.begin();
            first.die();
        });
        let second = thread::spawn(move || second.try_to_take());
        third.take();
        first.join().unwrap();
        second.join().unwrap();
        third.take();
    });
}

#[test]
fn the_work_of_a_repairer_that_died_is_repaired_too() {
    model(2, |[mut first, mut second, mut third]| {
        let shared = first.shared.clone();
        let _ = shared.lock.acquire(&mut first);
        shared.begin();
        first.die();
        let repairer = thread::spawn(move || {
            let shared = second.shared.clone();
            let (_, dead) = shared.lock.acquire(&mut second);
            // The first of the two has repaired it.
            assert_eq!(dead.is_any(), second.is_half_done());
            second.die();
        });
        third.take();
        repairer.join().unwrap();
        third.take();
    });
}

#[test]
fn an_owner_that_dies_on_its_way_in_keeps_nobody_out() {
    model(2, |[first, mut second, mut third]| {
        let first = thread::spawn(move || {
            if let Some(owner) = first.shared.lock.owned_by(Party(1)) {
                first.shared.lock.seat_of(owner).store(1, Relaxed);
            }
            first.die();
        });
        let second = thread::spawn(move || {
            second.try_to_take();
            second.try_to_take();
        });
        third.take();
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn a_contender_that_gives_up_leaves_the_lock_as_it_was() {
    model(2, |[mut first, mut second, mut third]| {
        (second.hopeless, third.hopeless) = (true, true);
        let first = thread::spawn(move || first.take());
        let second = thread::spawn(move || second.take_unless_stopped());
        third.take_unless_stopped();
        first.join().unwrap();
        second.join().unwrap();
        assert!(third.take_unless_stopped(), "nobody has it");
    });
}

#[test]
fn a_child_of_fork_does_not_enter_by_its_parents_seat() {
    model(2, |[mut parent, _, mut third]| {
        // The child has the parent's number and, in its copy of the parent's memory, a steady runner.
        let mut child = Runner { forked: true, ..parent.clone() };
        let parent = thread::spawn(move || parent.take());
        let child = thread::spawn(move || child.try_to_take());
        third.try_to_take();
        parent.join().unwrap();
        child.join().unwrap();
        assert!(third.try_to_take(), "nobody has it");
    });
}
