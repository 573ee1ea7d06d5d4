//! Coalesces the doorbells of a function; [`Doorbells`] explains why.

use super::{
    core::{Core, MILLI},
    doorbells::{Coalesced, Doorbells},
    stopped::is_stopped,
};
use std::sync::{
    PoisonError,
    atomic::{Ordering::*, fence},
};
/// Successive doorbells that are acted on at once, before coalescing begins.
const EAGER: u32 = 8;
/// Maximum number of doorbells coalesced into one.
const COALESCED: u32 = 16;
/// Time (ms) without coalescing after the parked thread had to release a doorbell.
const EAGER_AGAIN: u64 = 200;
/// Bits of a send doorbell that identify the QP.
const QPN: u64 = 0xffff_ff00;

impl Core {
    /// Coalesces a send doorbell. Returns false if the caller must act on it now.
    #[inline]
    pub fn coalesce(&self, fid: u8, offset: u32, value: u64) -> bool {
        let doorbells = self.doorbells(fid);
        let row = doorbells.row.load(Relaxed);
        if row < EAGER {
            doorbells.row.store(row + 1, Relaxed);
            return false;
        }
        self.coalesce_after_row(doorbells, fid, offset, value)
    }

    #[inline(never)]
    fn coalesce_after_row(&self, doorbells: &Doorbells, fid: u8, offset: u32, value: u64) -> bool {
        if doorbells.watched.load(Relaxed) == 0 && self.now() / MILLI < doorbells.eager_until.load(Relaxed) {
            return false;
        }
        doorbells.count.fetch_add(1, Relaxed);
        let mut place = doorbells.coalesced.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *place;
        let mut now = Coalesced { offset, value, count: 1 };
        let same = before.is_some_and(|b| b.offset == offset && (b.value ^ value) & QPN == 0);
        if let Some(before) = before.filter(|_| same) {
            now.count += before.count;
        }
        let due = if now.count >= COALESCED {
            *place = None;
            doorbells.pending.store(0, Relaxed);
            Some(now)
        } else {
            *place = Some(now);
            doorbells.pending.store(1, SeqCst);
            before.filter(|_| !same)
        };
        drop(place);
        // Sets `pending` before reading `watched`. The parked thread clears `watched` before reading `pending`, so at least one of the two
        // threads sees the other's store.
        fence(SeqCst);
        if doorbells.watched.load(Relaxed) == 0 && doorbells.watched.swap(1, SeqCst) == 0 {
            self.wake(self.me.slot);
        }
        if let Some(due) = due {
            self.ring(fid, due.offset, due.value);
        }
        true
    }

    /// Ends the row of doorbells and acts on the coalesced ones.
    #[inline]
    pub fn flush(&self, fid: u8) {
        if self.doorbells(fid).end_row() {
            self.flush_coalesced(fid);
        }
    }

    /// Acts on the coalesced doorbell, if any.
    #[cold]
    pub fn flush_coalesced(&self, fid: u8) {
        let doorbells = self.doorbells(fid);
        let mut place = doorbells.coalesced.lock().unwrap_or_else(PoisonError::into_inner);
        let due = place.take();
        // Cleared under the lock, so that a doorbell coalesced next keeps its flag.
        doorbells.pending.store(0, Relaxed);
        drop(place);
        if let Some(due) = due {
            self.ring(fid, due.offset, due.value);
        }
    }

    /// Acts on a doorbell.
    #[inline]
    pub fn ring(&self, fid: u8, offset: u32, value: u64) {
        let now = self.now();
        self.drive(now, |runner, host| {
            self.adapter.bar_write64(runner, host, now, fid, offset.into(), value);
        });
    }

    /// Releases doorbells that nothing else has released. Returns true if it must be called again soon.
    pub fn check_coalesced(&self) -> bool {
        let mut again = false;
        for fid in self.open_functions() {
            let doorbells = self.doorbells(fid);
            if doorbells.watched.load(Acquire) == 0 {
                continue;
            }
            let count = doorbells.count.load(Relaxed);
            if doorbells.seen.swap(count, Relaxed) != count {
                again = true;
                continue;
            }
            // The doorbell would block on the stopped holder, and with it this thread's work for other functions.
            let holder = self.adapter.region().function_lock(fid).holder();
            if holder.is_some_and(|party| is_stopped(self, party)) {
                again = true;
                continue;
            }
            doorbells.watched.store(0, SeqCst);
            fence(SeqCst);
            if doorbells.pending.load(SeqCst) != 0 {
                doorbells.eager_until.store(self.now() / MILLI + EAGER_AGAIN, Relaxed);
                doorbells.row.store(0, Relaxed);
                self.flush_coalesced(fid);
            }
        }
        again
    }
}
