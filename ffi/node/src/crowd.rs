//! Receivers that have many frames to take: whoever brings them more waits a while, as a receiver pauses a wire.

use crate::core::Core;
use devmodel::region::{FunctionSet, SLOTS, Sync};
use std::{
    sync::atomic::{AtomicU64, Ordering::*},
    thread,
    time::{Duration, Instant},
};

/// Frames that are brought before their receivers are looked at.
pub(super) const TOGETHER: usize = 32;
/// How often a guest's server or a program that has many frames to take is looked at, and how long it is waited for.
const LOOK: Duration = Duration::from_micros(50);
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

/// Receivers that one waits for.
#[derive(Default)]
pub(super) struct Crowd {
    /// Functions, by bit, whose servers were waited for in vain, until they take frames again.
    given_up: [AtomicU64; 2],
}

impl Crowd {
    /// Waits for functions of others that have many frames to take, but not for ever.
    pub(super) fn wait(&self, core: &Core) {
        let mut began = None;
        loop {
            let crowded = core.crowded();
            let words = [crowded as u64, (crowded >> 64) as u64];
            let mut waits = false;
            for (given_up, crowded) in self.given_up.iter().zip(words) {
                waits |= crowded & !given_up.fetch_and(crowded, Relaxed) != 0;
            }
            if !waits {
                return;
            }
            let began = *began.get_or_insert_with(Instant::now);
            if began.elapsed() > PATIENCE {
                for (given_up, crowded) in self.given_up.iter().zip(words) {
                    given_up.fetch_or(crowded, Relaxed);
                }
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

impl Core {
    /// Functions that others look after, by bit, and that have not taken half of the frames they have room for.
    fn crowded(&self) -> FunctionSet {
        let region = self.adapter.region();
        let of_others = (0..region.functions()).filter(|fid| self.server(*fid) != u32::from(self.me.slot));
        of_others
            .filter(|fid| {
                let [tail, head] =
                    [Sync::RxTail, Sync::RxHead].map(|word| region.sync(*fid, word).load(Relaxed));
                tail.wrapping_sub(head) as usize > SLOTS / 2
            })
            .fold(0, |set, fid| set | 1 << fid)
    }
}
