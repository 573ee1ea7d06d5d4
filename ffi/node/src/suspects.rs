//! Parties that may have died, and the search for them.
//!
//! A dead program does not say so, and no process is responsible for finding it: programs that wait for others look around
//! from time to time.

use super::{
    core::{Core, MILLI},
    party,
    party_set::PARTIES,
    sys,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Interval (ps) at which a program that waits checks whether other parties are alive.
const SWEEP: u64 = 250 * MILLI;
/// Rounds per full check of all parties; each round checks a part of them.
const SWEEPS: u32 = 32;
/// Number of parties that each round checks.
const FEW: u16 = 64;

/// The parties that this process suspects.
pub struct Suspects {
    /// A bit for each party.
    named: [AtomicU64; PARTIES / 64],
    /// Time of the last round (ps).
    swept: AtomicU64,
    /// Number of rounds so far.
    rounds: AtomicU32,
}

impl Default for Suspects {
    fn default() -> Self {
        Self {
            named: std::array::from_fn(|_| AtomicU64::new(0)),
            swept: AtomicU64::new(0),
            rounds: AtomicU32::new(0),
        }
    }
}

impl Core {
    /// Records that party `slot` may have died, and wakes this process's parked thread to find out.
    pub fn suspect(&self, slot: u16) {
        self.suspect_later(slot);
        self.wake(self.me.slot);
    }

    /// Like [`suspect`](Self::suspect), without waking the parked thread.
    pub fn suspect_later(&self, slot: u16) {
        if let Some(word) = self.suspects.named.get(usize::from(slot) / 64) {
            word.fetch_or(1 << (slot % 64), Relaxed);
        }
    }

    /// Returns and clears the suspected parties.
    pub fn take_suspects(&self) -> Vec<u16> {
        let mut found = Vec::new();
        for (i, word) in self.suspects.named.iter().enumerate() {
            if word.load(Relaxed) != 0 {
                let bits = word.swap(0, Relaxed);
                found.extend((0..64).filter(|b| bits & 1 << b != 0).map(|b| (i * 64 + b) as u16));
            }
        }
        found
    }

    /// Suspects the parties that are dead, if the last call that checked was some time ago. A lock query takes the kernel longer the more
    /// locks there are, so each round checks only a part of those parties with a parked thread that seems alive.
    pub fn sweep(&self, now: u64) {
        let Suspects { swept, rounds, .. } = &self.suspects;
        let last = swept.load(Relaxed);
        if now.wrapping_sub(last) <= SWEEP || swept.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
            return;
        }
        let turn = rounds.fetch_add(1, Relaxed) % SWEEPS;
        for slot in self.map.header().taken.iter().filter(|slot| *slot != self.me.slot) {
            let life = self.map.life(slot).load(Relaxed);
            let seems_alive = life != 0 && life & sys::DIED == 0;
            let due = !seems_alive || slot < FEW || u32::from(slot) % SWEEPS == turn;
            if due && !party::lives(&self.map, self.locks, slot) {
                self.suspect(slot);
            }
        }
    }
}
