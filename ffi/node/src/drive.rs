//! Runs the model in the calling thread, and leaves the remaining work to parked threads.

use super::{
    core::{Core, MILLI},
    file::FUNCTIONS,
    host::NodeHost,
    memory::Memory,
    scratch::bits,
};
use devmodel::{
    engine::Runner,
    region::{FunctionSet, Sync},
};
use std::sync::atomic::{Ordering::*, fence};

/// A parked thread that wakes by itself at most this long (ps) after a timer is not woken for it.
const SLACK: u64 = MILLI / 20;
/// How often one call resumes work left by a work limit before it leaves the rest to the parked thread.
const AGAIN: usize = 8;

/// Determines where the functions run that belong to the adapter beside this one and got frames.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// They are run at once.
    Here,
    /// The caller runs them.
    ToCaller,
}

impl Core {
    /// Calls `f` with a runner and a host of this process.
    #[inline]
    pub fn drive<R>(&self, now: u64, f: impl FnOnce(&mut Runner, &mut NodeHost<'_>) -> R) -> R {
        self.engines.with(|engine| {
            // In virtual time, the conductor runs the functions.
            engine.runner.defer(self.board().is_some());
            let mut host = NodeHost(Memory { core: self, scratch: &mut engine.scratch });
            let result = f(&mut engine.runner, &mut host);
            self.afterwards(&mut engine.runner, &mut host, now, Rest::Here);
            result
        })
    }

    /// Like [`drive`](Core::drive), for an `f` that locks `fid` without running it. Afterwards does the work that other processes left to
    /// this one in the meantime.
    pub fn touch<R>(&self, now: u64, fid: u8, f: impl FnOnce(&mut Runner, &mut NodeHost<'_>) -> R) -> R {
        self.drive(now, |runner, host| {
            let result = f(runner, host);
            if self.board().is_none() {
                runner.look_again(&self.adapter, host, now, fid);
            }
            result
        })
    }

    /// Does the work that other processes left to this one while it had the functions `locked`. `None` means that `f` gave up, so any
    /// function may have work.
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

    /// Runs `fid` if there is work, unless the node has a conductor.
    pub fn run(&self, now: u64, fid: u8) {
        if self.board().is_some() {
            return;
        }
        self.drive(now, |runner, host| runner.run(&self.adapter, host, now, fid));
    }

    /// Runs `fid` after its poller has seen work.
    pub fn run_busy(&self, now: u64, fid: u8) {
        self.drive(now, |runner, host| runner.run_busy(&self.adapter, host, now, fid));
    }

    /// True if a work limit left some work.
    #[inline]
    pub fn has_left(&self) -> bool {
        self.left[0].load(Relaxed) | self.left[1].load(Relaxed) != 0
    }

    /// Returns and clears the functions with work left by a work limit.
    #[inline]
    pub fn take_left(&self) -> u128 {
        if !self.has_left() {
            return 0;
        }
        u128::from(self.left[0].swap(0, Relaxed)) | u128::from(self.left[1].swap(0, Relaxed)) << 64
    }

    /// Passes on the remainder of a call: work beyond the limit, frames to the adapter beside this one, timers earlier than parked threads
    /// know, parties that may be dead. Returns the functions of the adapter beside this one to run, if that is left to the caller.
    #[inline]
    pub fn afterwards(
        &self,
        runner: &mut Runner,
        host: &mut NodeHost<'_>,
        now: u64,
        rest: Rest,
    ) -> FunctionSet {
        let (left, paused) = (runner.take_due(), runner.take_paused());
        if left | paused | host.0.scratch.due_beside != 0 {
            match self.board() {
                None => self.go_on((left, paused), runner, host, now, rest),
                Some(board) => board.leave(left | paused),
            }
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
            // The parked thread wakes the threads that sleep on interrupts.
            self.wake(self.me.slot);
        }
        std::mem::take(&mut host.0.scratch.due_beside)
    }

    /// Resumes work left by a work limit, and leaves the rest to the parked thread.
    #[cold]
    fn go_on(
        &self,
        (mut left, mut paused): (FunctionSet, FunctionSet),
        runner: &mut Runner,
        host: &mut NodeHost<'_>,
        now: u64,
        rest: Rest,
    ) {
        for _ in 0..AGAIN {
            if rest == Rest::Here && host.0.scratch.due_beside != 0 {
                left |= self.run_beside(std::mem::take(&mut host.0.scratch.due_beside));
                // There may be room for more frames now.
                left |= std::mem::take(&mut paused);
            }
            if left == 0 {
                break;
            }
            bits(left).for_each(|fid| runner.run(&self.adapter, host, now, fid));
            left = runner.take_due();
            paused |= runner.take_paused();
        }
        if rest == Rest::Here && host.0.scratch.due_beside != 0 {
            self.leave_beside(std::mem::take(&mut host.0.scratch.due_beside));
        }
        left |= paused;
        // The next poll runs the functions that this program polls.
        for fid in self.open_functions() {
            if self.is_poller(fid) {
                left &= !(1 << fid);
            }
        }
        if left != 0 {
            self.leave_to_parked(left);
        }
    }

    /// Leaves functions to the parked thread.
    pub fn leave_to_parked(&self, left: FunctionSet) {
        self.left[0].fetch_or(left as u64, Relaxed);
        self.left[1].fetch_or((left >> 64) as u64, Relaxed);
        if !self.engines.is_parked() {
            self.wake(self.me.slot);
        }
    }

    /// Records that the next timer of function `fid` changed to `word`.
    #[cold]
    fn note_timer(&self, timers: &mut Vec<u32>, fid: u8, word: u32) {
        if self.board().is_some() {
            return;
        }
        timers.resize(FUNCTIONS, 0);
        timers[usize::from(fid)] = word;
        self.announce_timer(fid);
    }

    /// Wakes those parked threads of the openers that would sleep past the next timer of `fid`.
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
