//! Model checking of the bell. A thread that is never woken shows up as a deadlock.

use super::*;
use loom::{
    sync::{Arc, Condvar, Mutex, atomic::AtomicU32},
    thread,
};

/// The kernel's part of futex(2): compares and sleeps, or wakes, atomically.
#[derive(Default)]
struct Kernel {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Kernel {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let guard = self.lock.lock().unwrap();
        if word.load(SeqCst) == seen {
            drop(self.sleepers.wait(guard).unwrap());
        }
    }

    fn wake(&self) {
        let _guard = self.lock.lock().unwrap();
        self.sleepers.notify_all();
    }
}

/// Several producers ring once each for a piece of work, and a thread sleeps until it has all pieces.
fn all_work_is_found(ringers: u32, preemptions: usize) {
    crate::checker::up_to(preemptions).check(move || {
        let shared = Arc::new((Bell::default(), AtomicU32::new(0), Kernel::default()));
        let all: Vec<_> = (0..ringers)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (bell, work, kernel) = &*shared;
                    work.fetch_add(1, SeqCst);
                    bell.ring(|_| kernel.wake());
                })
            })
            .collect();
        let (bell, work, kernel) = &*shared;
        loop {
            let seen = bell.rung();
            if work.load(SeqCst) == ringers {
                break;
            }
            bell.sleep(seen, |word, seen| kernel.wait(word, seen));
        }
        all.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn a_thread_finds_what_one_rings_for() {
    all_work_is_found(1, 4);
}

/// One producer may be slow to wake a thread that the other has already woken.
#[test]
fn a_thread_finds_what_two_ring_for() {
    all_work_is_found(2, 4);
}
