//! Sections of a thread that no signal handler interrupts.
#![allow(unsafe_code)]

use std::{io, mem::MaybeUninit, thread};

/// While this value lives, no signal handler runs in this thread, and threads started here begin with all signals
/// blocked.
///
/// SIGBUS and SIGSEGV are exceptions: if they are blocked, the kernel kills a thread that accesses a missing page
/// without calling its handler.
pub struct Quiet(libc::sigset_t);

impl Quiet {
    /// Blocks the signals of the calling thread.
    #[allow(clippy::new_without_default, reason = "it blocks signals")]
    pub fn new() -> Self {
        let (mut all, mut old) =
            (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
        // SAFETY: both sets are written before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
            libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
            Self(old.assume_init())
        }
    }

    /// Starts a thread that blocks the program's signals, with a stack of `stack` bytes. `migration` recognizes our threads by their names.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn spawn<T: Send + 'static>(
        name: &str,
        stack: usize,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<thread::JoinHandle<T>> {
        let _quiet = Self::new();
        thread::Builder::new().name(name.into()).stack_size(stack).spawn(body)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: restores the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_started_while_quiet_blocks_all_signals_but_those_of_a_missing_page() {
        let blocked = Quiet::spawn("quiet", 64 << 10, || {
            let mut set = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the set is written before it is read.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set.as_mut_ptr());
                [libc::SIGBUS, libc::SIGSEGV, libc::SIGTERM, libc::SIGALRM]
                    .map(|signal| libc::sigismember(set.as_ptr(), signal))
            }
        });
        assert_eq!(blocked.unwrap().join().unwrap(), [0, 0, 1, 1]);
    }
}
