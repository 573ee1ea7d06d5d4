//! Drives the model in the calling thread, and leaves to others what is theirs to do.

use super::{
    core::{Core, MILLI},
    file::FUNCTIONS,
    host::NodeHost,
    memory::Memory,
};
use devmodel::{
    engine::Runner,
    region::{FunctionSet, Sync},
};
use std::sync::atomic::{Ordering::*, fence};

/// A parked thread is not woken for a timer this little (ps) before its own waking time.
const SLACK: u64 = MILLI / 20;
/// How often in one call work left over is taken up again before the parked thread has to see to it.
const AGAIN: usize = 8;

impl Core {
    /// Drives the model: `f` gets a runner and a host of ours.
    #[inline]
    pub fn drive<R>(&self, now: u64, f: impl FnOnce(&mut Runner, &mut NodeHost<'_>) -> R) -> R {
        self.engines.with(|engine| {
            let mut host = NodeHost(Memory { core: self, scratch: &mut engine.scratch });
            let result = f(&mut engine.runner, &mut host);
            self.afterwards(&mut engine.runner, &mut host, now);
            result
        })
    }

    /// As [`Core::drive`], for what locks `fid` without running it: what others left to us meanwhile is done too.
    pub fn touch<R>(&self, now: u64, fid: u8, f: impl FnOnce(&mut Runner, &mut NodeHost<'_>) -> R) -> R {
        self.drive(now, |runner, host| {
            let result = f(runner, host);
            runner.look_again(&self.adapter, host, now, fid);
            result
        })
    }

    /// Sees to what others left to us while we had the functions `locked`; `None`: we gave up on the way, so it may be any of them.
    pub fn see_to_what_was_left(
        &self,
        runner: &mut Runner,
        host: &mut NodeHost<'_>,
        now: u64,
        locked: Option<FunctionSet>,
    ) -> Option<()> {
        runner.run_waiting(&self.adapter, host, now, locked.unwrap_or(FunctionSet::MAX));
        locked.map(drop)
    }

    /// Runs `fid` if it has anything to do.
    pub fn run(&self, now: u64, fid: u8) {
        self.drive(now, |runner, host| runner.run(&self.adapter, host, now, fid));
    }

    /// Runs `fid`, which seems to have something to do: its poller saw it.
    pub fn run_busy(&self, now: u64, fid: u8) {
        self.drive(now, |runner, host| runner.run_busy(&self.adapter, host, now, fid));
    }

    /// Functions with work left over by a bound.
    #[inline]
    pub fn take_left(&self) -> u128 {
        if self.left[0].load(Relaxed) | self.left[1].load(Relaxed) == 0 {
            return 0;
        }
        u128::from(self.left[0].swap(0, Relaxed)) | u128::from(self.left[1].swap(0, Relaxed)) << 64
    }

    /// What a call leaves to be seen to: work over the bound, timers that parked threads do not know of, the dead.
    #[inline]
    fn afterwards(&self, runner: &mut Runner, host: &mut NodeHost<'_>, now: u64) {
        let left = runner.take_due();
        if left != 0 {
            self.go_on(left, runner, host, now);
        }
        let scratch = &mut *host.0.scratch;
        scratch.entrusted.drain(|fid| self.polling.entrust(fid));
        let timers = &mut scratch.timers;
        scratch.touched.drain(|fid| {
            let word = self.adapter.region().sync(fid, Sync::Timer).load(Relaxed);
            if timers.get(usize::from(fid)) != Some(&word) {
                self.note_timer(timers, fid, word);
            }
        });
        if scratch.suspect != 0 {
            self.suspect(std::mem::take(&mut scratch.suspect));
        }
        if self.is_lost() {
            // It tells those who sleep.
            self.wake(self.me.slot);
        }
    }

    /// Takes up what a bound left over, and leaves what is still more to the parked thread.
    #[cold]
    fn go_on(&self, mut left: u128, runner: &mut Runner, host: &mut NodeHost<'_>, now: u64) {
        for _ in 0..AGAIN {
            for fid in (0..FUNCTIONS as u8).filter(|f| left & 1 << f != 0) {
                runner.run(&self.adapter, host, now, fid);
            }
            left = runner.take_due();
            if left == 0 {
                break;
            }
        }
        // What we poll ourselves we come back to.
        for fid in self.open_functions() {
            if self.is_poller(fid) {
                left &= !(1 << fid);
            }
        }
        if left != 0 {
            self.left[0].fetch_or(left as u64, Relaxed);
            self.left[1].fetch_or((left >> 64) as u64, Relaxed);
            self.wake(self.me.slot);
        }
    }

    /// Function `fid` has another timer than it had: `word`.
    #[cold]
    fn note_timer(&self, timers: &mut Vec<u32>, fid: u8, word: u32) {
        timers.resize(FUNCTIONS, 0);
        timers[usize::from(fid)] = word;
        self.announce_timer(fid);
    }

    /// Tells the parked threads of `fid`'s openers of an earlier timer than they know.
    fn announce_timer(&self, fid: u8) {
        fence(SeqCst);
        let Some(at) = self.adapter.region().timer_hint(fid, self.now()) else { return };
        for slot in self.openers(fid) {
            let deadline = self.map.party(slot).deadline.load(SeqCst);
            if at.saturating_add(SLACK) < deadline {
                self.wake(slot);
            }
        }
    }
}
