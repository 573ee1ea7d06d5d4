//! Wrapper of every C entry point: it catches panics and refuses calls from forked children.

use libc::c_int;
use node::timed::Call;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that loaded the provider and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Starts counting forks.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler only touches an atomic; this object is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Identifies the process that created an object. Forked children share the object's rings with it and must not touch them.
#[derive(Clone, Copy)]
pub struct Birth(u32);

impl Birth {
    /// The current process.
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// True if the current process is that process.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Fails with EIO in a forked child.
    #[inline]
    pub fn check(self) -> Result<(), c_int> {
        if self.is_here() { Ok(()) } else { Err(libc::EIO) }
    }
}

/// Runs the body of a C entry point. Returns `on_panic` if it panics.
#[inline(always)]
pub fn guard<T>(on_panic: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(on_panic)
}

/// For entry points that return a pointer. Returns null and sets errno on an error or a panic.
pub fn guard_ptr<T>(body: impl FnOnce() -> Result<*mut T, c_int>) -> *mut T {
    let _call = Call::begin();
    match guard(Err(libc::EIO), body) {
        Ok(pointer) => pointer,
        Err(errno) => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}

/// For entry points that return 0 or an errno. Also sets errno, which some callers expect.
pub fn guard_int(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let _call = Call::begin();
    match guard(Err(libc::EIO), body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno
        }
    }
}

/// Sets the C library's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_knows_that_it_is_one() {
        watch_forks();
        let birth = Birth::here();
        // SAFETY: the child only reads an atomic and exits.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(c_int::from(birth.is_here()));
            }
            child
        };
        let mut status = -1;
        // SAFETY: waits for this test's own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, birth.is_here()), (0, true));
    }

    #[test]
    fn a_panic_becomes_an_errno() {
        assert_eq!(guard_int(|| panic!("on purpose")), libc::EIO);
        assert!(guard_ptr::<u8>(|| panic!("on purpose")).is_null());
    }
}
