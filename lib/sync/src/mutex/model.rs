//! Model checking of the mutex: every possible order of its loads and stores, up to a number of preemptions.
//! [`bias`] explains the replacement of the kernel's barrier.

use super::*;
use crate::thread::run_as;
use loom::{cell::UnsafeCell as Checked, sync::Arc, thread};

/// loom reports unordered concurrent accesses to the value.
type Counter = Arc<BiasedMutex<Checked<u32>>>;

fn add(mutex: &Counter, biased: bool) {
    let guard = if biased { mutex.lock_biased() } else { mutex.lock() };
    // SAFETY: loom checks that there is no concurrent access.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn value(mutex: &Counter) -> u32 {
    // SAFETY: loom checks that there is no concurrent access.
    mutex.lock().with(|value| unsafe { *value })
}

/// Runs `test` in every order with up to `preemptions` preemptions, in thread 1, on a mutex without an owner.
fn check(preemptions: usize, test: impl Fn(Counter) + Sync + Send + 'static) {
    crate::checker::up_to(preemptions).check(move || {
        run_as(1);
        test(Arc::new(BiasedMutex::new(Checked::new(0))));
    });
}

/// Spawns a thread with the given number that locks `times` times.
fn spawn(number: usize, mutex: &Counter, biased: bool, times: u32) -> thread::JoinHandle<()> {
    let mutex = mutex.clone();
    thread::spawn(move || {
        run_as(number);
        (0..times).for_each(|_| add(&mutex, biased));
    })
}

#[test]
fn two_threads_that_would_both_be_owner_exclude_each_other() {
    check(3, |mutex| {
        let other = spawn(2, &mutex, true, 2);
        (0..2).for_each(|_| add(&mutex, true));
        other.join().unwrap();
        assert_eq!(value(&mutex), 4);
    });
}

#[test]
fn an_owner_and_a_thief_exclude_each_other() {
    check(3, |mutex| {
        add(&mutex, true);
        assert_eq!(mutex.owner.load(Relaxed), this_thread());
        let thief = spawn(2, &mutex, false, 1);
        (0..2).for_each(|_| add(&mutex, true));
        thief.join().unwrap();
        assert_eq!((value(&mutex), mutex.owner.load(Relaxed)), (4, REVOKED));
    });
}

#[test]
fn two_thieves_and_an_owner_exclude_each_other() {
    check(2, |mutex| {
        add(&mutex, true);
        let thieves = [spawn(2, &mutex, false, 1), spawn(3, &mutex, true, 1)];
        add(&mutex, true);
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        assert_eq!(value(&mutex), 4);
    });
}

#[test]
fn a_thread_with_the_number_of_a_dead_owner_and_a_thief_exclude_each_other() {
    check(3, |mutex| {
        // The C library reuses the memory of a finished thread, and so its number, for a new one.
        spawn(2, &mutex, true, 1).join().unwrap();
        let heir = spawn(2, &mutex, true, 1);
        add(&mutex, false);
        heir.join().unwrap();
        assert_eq!(value(&mutex), 3);
    });
}

#[test]
fn in_a_child_of_fork_only_the_thread_that_forked_owns_what_it_owned() {
    check(3, |mutex| {
        add(&mutex, true);
        let owner = spawn(2, &mutex, true, 1);
        // The mutex as copied by a fork in this thread. The fork may happen between any two steps of the other
        // thread.
        let copied = BiasedMutex {
            locked: AtomicBool::new(mutex.locked.load(Relaxed)),
            inside: AtomicBool::new(mutex.inside.load(Relaxed)),
            owner: AtomicUsize::new(mutex.owner.load(Relaxed)),
            value: UnsafeCell::new(Checked::new(0)),
        };
        let held = copied.locked.load(Relaxed) || copied.inside.load(Relaxed);
        let was_mine = copied.owner.load(Relaxed) == this_thread();
        let copied = Arc::new(copied);
        if !held {
            assert_eq!(copied.lock_as_owner().is_some(), was_mine);
            let other = spawn(3, &copied, true, 1);
            add(&copied, true);
            other.join().unwrap();
            assert_eq!(value(&copied), 2);
        }
        owner.join().unwrap();
        assert_eq!(value(&mutex), 2, "the parent's is as it was");
    });
}
