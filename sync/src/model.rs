//! The lock under a model checker: every order in which its loads and stores can happen, up to a number of preemptions.
//!
//! loom knows no `membarrier`. Here the owner has a fence where it has the compiler's alone otherwise, and [`Contender::barrier`]
//! is a fence of the thread that calls it. That stands for the same: the kernel's barrier puts a fence at some place into the
//! owner's thread, either behind its mark, which the caller then sees, or ahead of its look at `owner`, which then sees the caller's
//! store. A death is a thread that ends without another word, and what it stored is seen by whoever finds it dead, as the kernel
//! has it.
#![allow(unsafe_code)]

use super::*;
use loom::{
    cell::UnsafeCell,
    sync::{Arc, atomic::AtomicU32},
    thread,
};

/// What the lock guards: odd while somebody is at work. loom itself fails when two touch it and neither is sure to be first.
struct World {
    lock: Lock,
    work: UnsafeCell<u32>,
    /// Parties that are dead, by bit.
    dead: AtomicU32,
}

impl World {
    fn begin(&self) {
        self.work.with_mut(|work| {
            // SAFETY: loom checks that nobody else touches it.
            let work = unsafe { &mut *work };
            assert_eq!(*work % 2, 0, "two are inside, or what a dead one left was not repaired");
            *work += 1;
        });
    }

    fn end(&self) {
        self.work.with_mut(|work| {
            // SAFETY: loom checks that nobody else touches it.
            let work = unsafe { &mut *work };
            assert_eq!(*work % 2, 1, "two are inside");
            *work += 1;
        });
    }
}

/// One thread of one party.
#[derive(Clone)]
struct Runner {
    world: Arc<World>,
    me: u16,
    steady: bool,
    /// All it waits for are stopped, as far as it can find out.
    hopeless: bool,
}

impl Contender for Runner {
    fn party(&self) -> Party {
        Party(self.me)
    }
    fn steady(&self) -> Option<Party> {
        self.steady.then_some(Party(self.me))
    }
    fn barrier(&mut self) {
        loom::sync::atomic::fence(SeqCst);
    }
    fn alive(&mut self, party: Party) -> bool {
        self.world.dead.load(Acquire) & 1 << party.0 == 0
    }
    fn relax(&mut self, _: Party, _: u32) -> bool {
        // Others run while it spins.
        self.hopeless
    }
}

impl Runner {
    fn work(&self, holding: Holding<'_>, dead: Dead) {
        if dead.is_any() {
            if self.is_half_done() {
                self.world.end();
            }
            holding.repaired();
        }
        self.world.begin();
        self.world.end();
        holding.release();
    }

    fn take(&mut self) {
        let world = self.world.clone();
        let (holding, dead) = world.lock.acquire(self);
        self.work(holding, dead);
    }

    fn take_unless_stopped(&mut self) -> bool {
        let world = self.world.clone();
        let taken = world.lock.acquire_with(self, Patience::UntilStopped);
        let is_taken = taken.is_some();
        if let Some((holding, dead)) = taken {
            self.work(holding, dead);
        }
        is_taken
    }

    fn try_to_take(&mut self) -> bool {
        let world = self.world.clone();
        let taken = world.lock.try_acquire(self);
        let is_taken = taken.is_some();
        if let Some(holding) = taken {
            self.work(holding, Dead::default());
        }
        is_taken
    }

    /// Whether somebody left its work half done. For who holds the lock.
    fn is_half_done(&self) -> bool {
        // SAFETY: loom checks that nobody else touches it.
        self.world.work.with(|work| unsafe { *work } % 2 == 1)
    }

    fn die(&self) {
        self.world.dead.fetch_or(1 << self.me, Release);
    }
}

/// Runs `test` in every order with up to `preemptions`, on a lock that steady runner 1 owns. It gets that runner, another steady
/// one, and one that never owns anything.
fn model(preemptions: usize, test: impl Fn([Runner; 3]) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let world =
            Arc::new(World { lock: Lock::default(), work: UnsafeCell::new(0), dead: AtomicU32::new(0) });
        let runner = |me, steady| Runner { world: world.clone(), me, steady, hopeless: false };
        let mut owner = runner(1, true);
        owner.take();
        assert_eq!(world.lock.owner.load(Relaxed) & PARTY, 1, "who is steady owns it at once here");
        test([owner, runner(2, true), runner(3, false)]);
    });
}

#[test]
fn an_owner_and_the_one_after_it_exclude_each_other() {
    model(3, |[mut first, mut second, _]| {
        let second = thread::spawn(move || {
            // Takes the lock away, owns it, and takes it as its owner.
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
fn what_an_owner_left_that_died_inside_is_repaired_once() {
    model(2, |[mut first, mut second, mut third]| {
        let first = thread::spawn(move || {
            let world = first.world.clone();
            let (_, dead) = world.lock.acquire(&mut first);
            assert!(!dead.is_any());
            world.begin();
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
fn what_a_repairer_left_that_died_is_repaired_too() {
    model(2, |[mut first, mut second, mut third]| {
        let world = first.world.clone();
        let _ = world.lock.acquire(&mut first);
        world.begin();
        first.die();
        let repairer = thread::spawn(move || {
            let world = second.world.clone();
            let (_, dead) = world.lock.acquire(&mut second);
            // Who came first has repaired it.
            assert_eq!(dead.is_any(), second.is_half_done());
            second.die();
        });
        third.take();
        repairer.join().unwrap();
        third.take();
    });
}

#[test]
fn an_owner_that_dies_at_the_door_keeps_nobody_out() {
    model(2, |[first, mut second, mut third]| {
        let first = thread::spawn(move || {
            if let Some(owner) = first.world.lock.owned_by(Party(1)) {
                first.world.lock.seat_of(owner).store(1, Relaxed);
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
fn who_gives_up_on_the_stopped_leaves_the_lock_as_it_was() {
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
