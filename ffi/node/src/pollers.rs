//! Finds out which programs poll their functions, and leaves these to them, see [`super::polling`].

use super::{
    core::{Core, MILLI},
    scratch::bits,
    sys,
};
use devmodel::region::{Sync, WireRing};
use std::sync::atomic::Ordering::*;

/// Polls in a row that found nothing, without a doorbell between, that make a poller. So does a row of fewer between any two
/// doorbells (see `doorbells`): two programs in step wait for less than this.
const PERSISTENT: u32 = 32;
/// As many make one that has waited too long: some 200 us.
const IMPATIENT: u32 = 2048;
/// Time (ms) for which a program that stopped, or let others wait twice, is not taken for a poller. Without it two programs that watch their
/// memory, and poll only for their own completions, would take each other for pollers again and again.
const DISTRUST: u64 = 2;
/// Time (ms) within which the second time counts. Once may happen to any poller: it was kept from its processor for a while, as often
/// happens on a machine that others use too.
const TWICE: u64 = 1;

impl Core {
    /// Whether we are the one who polls `fid`.
    #[inline]
    pub fn is_poller(&self, fid: u8) -> bool {
        self.map.functions()[usize::from(fid)].poller.load(Relaxed) == u32::from(self.me.slot)
    }

    /// After `streak` polls of `fid` in a row that found nothing.
    pub fn persevere(&self, fid: u8, streak: u32, now: u64) {
        if streak >= PERSISTENT {
            self.poll_on(fid, now);
        }
        if streak >= IMPATIENT {
            self.take_back_entrusted(now);
        }
    }

    /// This program does nothing but poll `fid`: from now on frames are left to it.
    pub fn poll_on(&self, fid: u8, now: u64) {
        let function = &self.map.functions()[usize::from(fid)];
        let poller = &function.poller;
        if poller.load(Relaxed) == 0
            && now / MILLI >= function.distrusted.load(Relaxed)
            && poller.compare_exchange(0, self.me.slot.into(), SeqCst, Relaxed).is_ok()
        {
            // From now on it looks whether we are still at it.
            self.wake(self.me.slot);
        }
    }

    /// Runs the functions whose frames we left to their pollers and that still have them.
    fn take_back_entrusted(&self, now: u64) {
        let entrusted = self.polling.take_entrusted();
        for fid in bits(entrusted) {
            if WireRing::of(self.adapter.region(), fid).waits() {
                let last = self.map.functions()[usize::from(fid)].distrusted.load(Relaxed);
                let twice = now / MILLI <= last + TWICE;
                self.take_back(fid, now, if twice { DISTRUST } else { 0 });
            }
        }
    }

    /// The same for our parked thread, which is not in a hurry: only from pollers that took nothing between two looks,
    /// for they stopped or are gone. True if it should look again soon.
    pub fn take_back_stalled(&self, now: u64) -> bool {
        let entrusted = self.polling.take_entrusted();
        let region = self.adapter.region();
        let mut waiting = false;
        for fid in bits(entrusted) {
            if !WireRing::of(region, fid).waits() {
                continue;
            }
            let head = region.sync(fid, Sync::RxHead).load(Acquire);
            if self.polling.taken[usize::from(fid)].swap(head, Relaxed) == head {
                self.take_back(fid, now, DISTRUST);
            } else {
                self.polling.entrust(fid);
                waiting = true;
            }
        }
        waiting
    }

    /// Takes `fid` from its poller, and runs it; nobody is its poller for `distrust` ms.
    fn take_back(&self, fid: u8, now: u64, distrust: u64) {
        let function = &self.map.functions()[usize::from(fid)];
        if function.poller.load(Relaxed) != 0 {
            function.distrusted.store(now / MILLI + distrust, Relaxed);
        }
        function.poller.store(0, SeqCst);
        self.see_all();
        self.run(now, fid);
    }

    /// We no longer poll `fid`: others run it from now on. What waits already is still ours to run.
    pub fn stop_polling(&self, fid: u8) {
        let poller = &self.map.functions()[usize::from(fid)].poller;
        if poller.compare_exchange(self.me.slot.into(), 0, SeqCst, Relaxed).is_ok() {
            self.see_all();
        }
    }

    /// Waits until whatever others stored before they saw our last store is seen here. They ask who polls once for each
    /// frame and we stop seldom, so the whole price is paid here.
    fn see_all(&self) {
        if !sys::barrier_everywhere() {
            // Stores are under way for less than a thread takes to wake up; it looks at all our functions.
            self.wake(self.me.slot);
        }
    }

    /// Stops for functions that nobody polled since the last call. The others, by bit, are run by who polls them.
    pub fn check_pollers(&self) -> u128 {
        let mut polled = 0;
        for fid in self.open_functions().filter(|fid| self.is_poller(*fid)) {
            let polls = self.doorbells(fid).empty_polls();
            if self.polling.seen[usize::from(fid)].swap(polls, Relaxed) == polls {
                self.stop_polling(fid);
            } else {
                polled |= 1 << fid;
            }
        }
        polled
    }
}
