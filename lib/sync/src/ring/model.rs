//! Model checking of the ring: every possible order of its loads and stores, up to a number of preemptions.
//!
//! The slots are loom cells, which report unordered concurrent accesses. A loom mutex replaces the producers' lock,
//! which has its own model; a dying producer releases it and leaves a flag, in place of the notice of death by the
//! lock.
#![allow(unsafe_code)]

use super::*;
use loom::{
    cell::UnsafeCell,
    sync::{Arc, Mutex},
    thread,
};

const SLOTS: usize = 2;

/// Two slots, the indices, and a flag for the death of the last producer.
#[derive(Default)]
struct Shared {
    tail: AtomicU32,
    seen: AtomicU32,
    head: AtomicU32,
    words: [AtomicU16; SLOTS],
    slots: [UnsafeCell<u32>; SLOTS],
    died: Mutex<bool>,
}

/// The point at which a producer dies during its second frame.
#[derive(Clone, Copy, PartialEq)]
enum Death {
    /// While writing the slot.
    Filling,
    /// After the frame is present, before it is counted.
    Filled,
}

impl Shared {
    fn ring(&self) -> Ring<'_, SLOTS> {
        Ring { tail: &self.tail, seen: &self.seen, head: &self.head }
    }

    fn word(&self, n: u32) -> &AtomicU16 {
        &self.words[n as usize % SLOTS]
    }

    fn slot(&self, n: u32) -> &UnsafeCell<u32> {
        &self.slots[n as usize % SLOTS]
    }

    /// Puts the number of the next frame into its slot. Returns false if the ring is full.
    fn fill(&self, death: Option<Death>) -> bool {
        let mut died = self.died.lock().unwrap();
        let ring = self.ring();
        if std::mem::take(&mut *died) {
            ring.recount(|n| self.word(n));
        }
        let Some(n) = ring.room() else { return false };
        // SAFETY: loom checks that there is no concurrent access.
        self.slot(n).with_mut(|slot| unsafe { *slot = n });
        match death {
            None => ring.publish(self.word(n), n),
            Some(death) => {
                if death == Death::Filled {
                    self.word(n).store(Ring::<SLOTS>::lap(n), Release);
                }
                *died = true;
            }
        }
        true
    }

    /// Takes up to `frames` available frames, starting at `next`, and gives their slots back. Returns the number of the
    /// next frame.
    fn take(&self, mut next: u32, frames: u32) -> u32 {
        let end = next + frames;
        while next != end && Ring::<SLOTS>::is_there(self.word(next), next) {
            // SAFETY: loom checks that there is no concurrent access.
            assert_eq!(self.slot(next).with(|slot| unsafe { *slot }), next, "another frame");
            next += 1;
        }
        self.ring().give_back(next);
        next
    }
}

fn check(preemptions: usize, test: impl Fn(Arc<Shared>) + Sync + Send + 'static) {
    crate::checker::up_to(preemptions).check(move || test(Arc::default()));
}

/// Checks that all frames put in have been taken in order, and that the ring is empty and still usable.
fn settle(shared: &Shared, next: u32) {
    let mut next = shared.take(next, SLOTS as u32);
    for _ in 0..=SLOTS {
        assert!(shared.fill(None), "there is room");
        assert!(shared.ring().waits(|n| shared.word(n)));
        let taken = shared.take(next, SLOTS as u32);
        assert!(taken > next);
        next = taken;
    }
    assert!(!shared.ring().waits(|n| shared.word(n)));
    assert_eq!(shared.tail.load(Relaxed), next);
    assert!(
        (SLOTS / 2..=SLOTS).contains(&shared.ring().free()),
        "half of it may not have been looked at again"
    );
}

#[test]
fn frames_of_two_fillers_are_taken_whole_and_once_around_the_ring() {
    check(3, |shared| {
        assert!(shared.fill(None));
        let fillers = [2, 1].map(|frames| {
            let shared = shared.clone();
            thread::spawn(move || (0..frames).filter(|_| shared.fill(None)).count())
        });
        let next = (0..3).fold(0, |next, _| shared.take(next, 2));
        let put: usize = fillers.into_iter().map(|filler| filler.join().unwrap()).sum();
        assert_eq!(shared.tail.load(Relaxed) as usize, 1 + put);
        settle(&shared, next);
    });
}

#[test]
fn a_filler_that_dies_leaves_a_whole_frame_or_none() {
    for death in [Death::Filling, Death::Filled] {
        check(3, move |shared| {
            let dying = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.fill(None);
                    shared.fill(Some(death));
                })
            };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.fill(None))
            };
            let next = (0..3).fold(0, |next, _| shared.take(next, 1));
            dying.join().unwrap();
            other.join().unwrap();
            let next = shared.take(next, SLOTS as u32);
            settle(&shared, next);
        });
    }
}

#[test]
fn who_has_no_lock_sees_frames_that_wait_and_no_room_that_is_not_there() {
    check(3, |shared| {
        let filler = {
            let shared = shared.clone();
            thread::spawn(move || (0..3).filter(|_| shared.fill(None)).count())
        };
        let taker = {
            let shared = shared.clone();
            thread::spawn(move || shared.take(0, 2))
        };
        // Both values may be outdated by now, but do not exceed the possible range.
        assert!(shared.ring().free() <= SLOTS);
        shared.ring().waits(|n| shared.word(n));
        let put = filler.join().unwrap() as u32;
        let next = taker.join().unwrap();
        assert_eq!(shared.ring().waits(|n| shared.word(n)), next != put);
        assert!(shared.ring().free() as u32 <= SLOTS as u32 - (put - next));
    });
}
