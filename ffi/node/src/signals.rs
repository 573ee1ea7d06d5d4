//! Waits for SIGINT, SIGTERM or SIGHUP synchronously.
#![allow(unsafe_code)]

use nix::sys::signal::{SigSet, Signal};
use std::{io, ptr, time::Duration};

/// Signals that end a service, blocked in all threads that are started while this exists.
pub struct Signals(SigSet);

impl Signals {
    /// Blocks the signals in this thread and in those it starts from now on.
    pub fn hold() -> io::Result<Self> {
        let set = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Waits for a signal, at most for `most`. Returns its number.
    pub fn wait_for(&self, most: Duration) -> Option<i32> {
        let most =
            libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos() as libc::c_long };
        // SAFETY: the set and the time live across the call.
        let signal = unsafe { libc::sigtimedwait(self.0.as_ref(), ptr::null_mut(), &raw const most) };
        (signal > 0).then_some(signal)
    }

    /// Waits for a signal. Returns its number.
    pub fn wait(&self) -> i32 {
        loop {
            if let Ok(signal) = self.0.wait() {
                return signal as i32;
            }
        }
    }
}
