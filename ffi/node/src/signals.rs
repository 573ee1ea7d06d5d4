//! Waits for SIGINT, SIGTERM or SIGHUP synchronously.
#![allow(unsafe_code)]

use std::{io, mem::MaybeUninit, ptr, time::Duration};

/// Signals that end a service, blocked in all threads that are started while this exists.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals in this thread and in those it starts from now on.
    pub fn hold() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is written before it is read.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut()) {
                0 => Ok(Self(set.assume_init())),
                e => Err(io::Error::from_raw_os_error(e)),
            }
        }
    }

    /// Waits for a signal, at most for `most`. Returns its number.
    pub fn wait_for(&self, most: Duration) -> Option<i32> {
        let most =
            libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos() as libc::c_long };
        // SAFETY: the set and the time live across the call.
        let signal = unsafe { libc::sigtimedwait(&raw const self.0, ptr::null_mut(), &raw const most) };
        (signal > 0).then_some(signal)
    }

    /// Waits for a signal. Returns its number.
    pub fn wait(&self) -> i32 {
        let mut signal = 0;
        loop {
            // SAFETY: an initialized set, and room for a number.
            if unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } == 0 {
                return signal;
            }
        }
    }
}
