//! Locks that know their owner, so that the dead do not hold them.

use crate::host::{Host, Party};
use std::sync::atomic::{AtomicU32, Ordering::*};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acquired {
    Free,
    /// Taken over from this party, which died holding it.
    FromDead(Party),
}

/// Looks whether the holder lives once in so many rounds; a round is a few nanoseconds, so this is some 20 us.
const ROUNDS_PER_CHECK: u32 = 4_000;

/// Takes `word` for `host`'s party if it is free.
#[inline]
pub(super) fn try_acquire(word: &AtomicU32, host: &dyn Host) -> bool {
    word.load(Relaxed) == 0 && word.compare_exchange(0, u32::from(host.party().0), Acquire, Relaxed).is_ok()
}

/// Takes `word` for `host`'s party, waiting while its holder lives.
#[inline]
pub(super) fn acquire(word: &AtomicU32, host: &mut dyn Host) -> Acquired {
    if word.compare_exchange(0, u32::from(host.party().0), Acquire, Relaxed).is_ok() {
        return Acquired::Free;
    }
    contended(word, host)
}

#[cold]
fn contended(word: &AtomicU32, host: &mut dyn Host) -> Acquired {
    let me = u32::from(host.party().0);
    let mut rounds = 0u32;
    loop {
        let held = word.load(Relaxed);
        let (holder, before) = (held & 0xffff, held >> 16);
        if held == 0 {
            if word.compare_exchange_weak(0, me, Acquire, Relaxed).is_ok() {
                return Acquired::Free;
            }
            continue;
        }
        rounds += 1;
        if rounds % ROUNDS_PER_CHECK == 0 {
            // Another thread of our own party lives as surely as we do.
            if holder != me && !host.alive(Party(holder as u16)) {
                // Who died first stays on record until what it left is repaired: the repairer may die as well.
                let first = if before == 0 { holder } else { before };
                if word.compare_exchange(held, first << 16 | me, Acquire, Relaxed).is_ok() {
                    return Acquired::FromDead(Party(first as u16));
                }
            }
            host.relax();
        }
        std::hint::spin_loop();
    }
}

/// What the dead holder left is repaired: the lock is `host`'s like any other.
pub(super) fn repaired(word: &AtomicU32, host: &dyn Host) {
    word.store(u32::from(host.party().0), Release);
}

/// Releases before whatever is looked at next with `SeqCst`: cheaper than a fence behind the release.
#[inline]
pub(super) fn release_first(word: &AtomicU32) {
    word.swap(0, SeqCst);
}

#[inline]
pub(super) fn release(word: &AtomicU32) {
    word.store(0, Release);
}
