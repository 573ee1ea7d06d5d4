//! Finds out which programs poll their functions, and leaves frames to them; see [`super::polling`].

use super::{
    core::{Core, MILLI},
    scratch::bits,
    sys,
};
use devmodel::region::{Sync, WireRing};
use std::sync::atomic::Ordering::*;

/// A program becomes the poller of a function after so many successive empty polls without a doorbell, or after fewer
/// before each of many doorbells (see `doorbells`), since two programs in step wait for less than this.
const PERSISTENT: u32 = 32;
/// A program that has polled so often in vain has waited too long: some 200 us.
const IMPATIENT: u32 = 2048;
/// Time (ms) for which a program that stopped polling, or twice kept others waiting, is not made a poller again.
/// Otherwise two programs that watch their memory, and poll only for their own completions, would take each other for
/// pollers again and again.
const DISTRUST: u64 = 2;
/// A second time counts within this time (ms). Any poller may keep others waiting once, when it is kept from its
/// processor.
const TWICE: u64 = 1;

impl Core {
    /// True if this program is the poller of `fid`.
    #[inline]
    pub fn is_poller(&self, fid: u8) -> bool {
        self.map.functions()[usize::from(fid)].poller.load(Relaxed) == u32::from(self.me.slot)
    }

    /// Called after `streak` successive empty polls of `fid`.
    pub fn persevere(&self, fid: u8, streak: u32, now: u64) {
        if streak >= PERSISTENT {
            self.poll_on(fid, now);
        }
        if streak >= IMPATIENT {
            self.take_back_entrusted(now);
        }
    }

    /// Makes this program the poller of `fid`: from now on others leave frames to it.
    pub fn poll_on(&self, fid: u8, now: u64) {
        let function = &self.map.functions()[usize::from(fid)];
        let poller = &function.poller;
        if poller.load(Relaxed) == 0
            && now / MILLI >= function.distrusted.load(Relaxed)
            && poller.compare_exchange(0, self.me.slot.into(), SeqCst, Relaxed).is_ok()
        {
            // The parked thread now checks that we go on polling.
            self.wake(self.me.slot);
        }
    }

    /// Runs functions whose frames we left to their pollers, and whose pollers have not taken them.
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

    /// The same for our parked thread, which is not in a hurry: it only takes functions from pollers that took
    /// nothing between two checks, since these have stopped or died. Returns true if it should check again soon.
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

    /// Takes `fid` from its poller and runs it. Nobody becomes its poller for `distrust` ms.
    fn take_back(&self, fid: u8, now: u64, distrust: u64) {
        let function = &self.map.functions()[usize::from(fid)];
        if function.poller.load(Relaxed) != 0 {
            function.distrusted.store(now / MILLI + distrust, Relaxed);
        }
        function.poller.store(0, SeqCst);
        self.see_all();
        self.run(now, fid);
    }

    /// Stops being the poller of `fid`: others run it from now on. This program still has to run what waits already.
    pub fn stop_polling(&self, fid: u8) {
        let poller = &self.map.functions()[usize::from(fid)].poller;
        if poller.compare_exchange(self.me.slot.into(), 0, SeqCst, Relaxed).is_ok() {
            self.see_all();
        }
    }

    /// Waits until everything that others stored before they saw our last store is visible here. They ask for the
    /// poller with every frame, and we rarely stop, so all of the cost is ours.
    fn see_all(&self) {
        if !sys::barrier_everywhere() {
            // Stores become visible in less time than a thread takes to wake up. It checks all our functions.
            self.wake(self.me.slot);
        }
    }

    /// Stops polling the functions that nobody polled since the last call. Returns the others, a bit each.
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
