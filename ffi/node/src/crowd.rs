//! Backpressure: a sender waits a while for receivers with many undelivered frames, as a receiver pauses a link.

use crate::core::Core;
use devmodel::region::{FunctionSet, SLOTS, Sync};
use std::{
    sync::atomic::{AtomicU64, Ordering::*},
    thread,
    time::{Duration, Instant},
};

/// Frames delivered between two checks of their receivers.
pub(super) const TOGETHER: usize = 32;
/// Interval between checks of a guest's server or a program with many undelivered frames, and the maximum wait for it.
const LOOK: Duration = Duration::from_micros(50);
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

/// The receivers to wait for.
#[derive(Default)]
pub(super) struct Crowd {
    /// Functions (a bit each) with a server that did not catch up in time. They are not waited for again until they take frames.
    given_up: [AtomicU64; 2],
}

impl Crowd {
    /// Waits for functions of other processes with many undelivered frames, for a limited time. Calls `before_sleep` before it first
    /// sleeps.
    pub(super) fn wait(&self, core: &Core, before_sleep: impl FnOnce()) {
        let mut before_sleep = Some(before_sleep);
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
            before_sleep.take().into_iter().for_each(|call| call());
            thread::sleep(LOOK);
        }
    }
}

impl Core {
    /// Functions (a bit each) that other processes serve and with a receive ring that is more than half full.
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
