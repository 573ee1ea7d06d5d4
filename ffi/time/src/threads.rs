//! Threads of programs. A new thread gets its place on the board before its creator continues. Time therefore stands still while the
//! thread computes, even if it never reads a clock.

use super::{own::instead, player};
use clock::Call;
use libc::{c_int, c_void, pthread_attr_t, pthread_t};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// libc's type of a thread's start routine. The routine may end the thread from inside, which unwinds the stack.
pub type Begin = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// The start routine and argument of a new thread. The creator waits until the thread has taken them.
struct Given {
    begin: Begin,
    with: *mut c_void,
    taken: AtomicBool,
}

/// # Safety
/// `given` points to a [`Given`] that is alive until it is taken, and whose function may be called with its argument.
unsafe extern "C-unwind" fn begin(given: *mut c_void) -> *mut c_void {
    let _ = player();
    let given = given.cast_const().cast::<Given>();
    // SAFETY: the caller's promise. Nothing here is dropped, so the thread may end in the middle of the call.
    unsafe {
        let (begin, with) = ((*given).begin, (*given).with);
        (*given).taken.store(true, Release);
        begin(with)
    }
}

instead! {
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const pthread_attr_t,
        first: Begin,
        with: *mut c_void,
    ) -> c_int, or libc::ENOSYS; {
        if player().is_none() {
            return own(thread, attributes, first, with);
        }
        let given = Given { begin: first, with, taken: AtomicBool::new(false) };
        // The creator counts as running until then.
        let _call = Call::begin();
        let failed = own(thread, attributes, begin, (&raw const given).cast_mut().cast());
        while failed == 0 && !given.taken.load(Acquire) {
            libc::syscall(libc::SYS_sched_yield);
        }
        failed
    }
}
