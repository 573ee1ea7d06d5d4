//! Detects which programs poll their functions, and leaves frames to them ([`super::polling`]).

use super::{
    core::{Core, MILLI},
    scratch::bits,
    sys,
};
use devmodel::region::{Sync, WireRing};
use std::sync::atomic::Ordering::*;

/// A program becomes the poller of a function after this many successive empty polls without a doorbell, or after fewer before each of many
/// doorbells (see `doorbells`): two programs that take turns wait for less than this.
const PERSISTENT: u32 = 32;
/// Number of empty polls after which a program has waited too long: about 200 us.
const IMPATIENT: u32 = 2048;
/// Time (ms) for which a program does not become a poller again after it stopped polling or kept others waiting twice. Otherwise two
/// programs that poll memory, and poll the CQ only for their own completions, would repeatedly mistake each other for pollers.
const DISTRUST: u64 = 2;
/// Window (ms) in which a second time counts. Any poller may keep others waiting once, when it is preempted.
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
            self.take_back_beside();
        }
    }

    /// Makes this program the poller of `fid`: from now on other programs leave frames to it.
    pub fn poll_on(&self, fid: u8, now: u64) {
        let function = &self.map.functions()[usize::from(fid)];
        let poller = &function.poller;
        if poller.load(Relaxed) == 0
            && now / MILLI >= function.distrusted.load(Relaxed)
            && poller.compare_exchange(0, self.me.slot.into(), SeqCst, Relaxed).is_ok()
        {
            // From now on the parked thread checks that the program continues to poll.
            self.wake(self.me.slot);
        }
    }

    /// A number that changes when pollers take frames that this process left to them; `None` if none wait.
    pub fn entrusted_head(&self) -> Option<u32> {
        let region = self.adapter.region();
        let waiting = bits(self.polling.entrusted()).filter(|fid| WireRing::of(region, *fid).waits());
        waiting.map(|fid| region.sync(fid, Sync::RxHead).load(Acquire)).reduce(u32::wrapping_add)
    }

    /// Runs the functions with frames that this process left to their pollers and that they have not taken.
    pub fn take_back_entrusted(&self, now: u64) {
        let entrusted = self.polling.take_entrusted();
        for fid in bits(entrusted) {
            if WireRing::of(self.adapter.region(), fid).waits() {
                let last = self.map.functions()[usize::from(fid)].distrusted.load(Relaxed);
                let twice = now / MILLI <= last + TWICE;
                self.take_back(fid, now, if twice { DISTRUST } else { 0 });
            }
        }
    }

    /// The same for the parked thread, which can wait: it only takes functions from pollers that took nothing between two checks, because
    /// these have stopped or died. Returns true if it should check again soon.
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

    /// Takes `fid` away from its poller and runs it. The function gets no poller for `distrust` ms.
    fn take_back(&self, fid: u8, now: u64, distrust: u64) {
        let function = &self.map.functions()[usize::from(fid)];
        if function.poller.load(Relaxed) != 0 {
            function.distrusted.store(now / MILLI + distrust, Relaxed);
        }
        function.poller.store(0, SeqCst);
        self.see_all();
        self.run(now, fid);
    }

    /// Stops being the poller of `fid`: others run it from now on. This program still has to run what is already waiting.
    pub fn stop_polling(&self, fid: u8) {
        let poller = &self.map.functions()[usize::from(fid)].poller;
        if poller.compare_exchange(self.me.slot.into(), 0, SeqCst, Relaxed).is_ok() {
            self.see_all();
        }
    }

    /// Waits until all stores that other processes made before they saw this process's last store are visible here. They read the poller
    /// with every frame and this process rarely stops polling, so it bears the whole cost.
    fn see_all(&self) {
        if !sys::barrier_everywhere() {
            // Stores become visible in less time than a thread takes to wake up. The parked thread checks all functions of this process.
            self.wake(self.me.slot);
        }
    }

    /// Stops polling the functions that were not polled since the last call. Returns the others, a bit each.
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
