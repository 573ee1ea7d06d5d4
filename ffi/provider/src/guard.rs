//! Wrapper of every C entry point: it catches panics and refuses calls from forked children.

use crate::ours::{Born, Of};
use libc::c_int;
use node::timed::Call;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

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

/// A result of a verb, and its form in C.
pub trait Answer: Sized {
    type C;
    /// Converts a result. A failed verb also sets errno, which some callers of those that return an errno expect.
    fn to_c(result: Result<Self, c_int>) -> Self::C;
}

/// 0 or an errno.
impl Answer for () {
    type C = c_int;

    fn to_c(result: Result<Self, c_int>) -> c_int {
        result.err().inspect(|errno| set_errno(*errno)).unwrap_or(0)
    }
}

/// A pointer, or null.
macro_rules! pointers { ($($kind:ident)+) => { $(
    impl<T> Answer for $kind<T> {
        type C = Option<Self>;

        fn to_c(result: Result<Self, c_int>) -> Option<Self> {
            result.inspect_err(|errno| set_errno(*errno)).ok()
        }
    }
)+ } }
pointers! { Of NonNull }

/// Runs the body of a verb. A panic becomes EIO.
pub fn answer<T: Answer>(body: impl FnOnce() -> Result<T, c_int>) -> T::C {
    let _call = Call::begin();
    T::to_c(guard(Err(libc::EIO), body))
}

/// Runs the body of a verb on `object`. Fails with EIO in a forked child.
pub fn verb<T: Answer, O: Born>(object: Of<O>, body: impl FnOnce() -> Result<T, c_int>) -> T::C {
    answer(|| {
        O::birth(object).check()?;
        body()
    })
}

/// Locks a mutex, even if a thread panicked while it held it: [`guard`] catches panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(answer::<()>(|| panic!("on purpose")), libc::EIO);
        assert!(answer::<Of<crate::abi::public::ibv_pd>>(|| panic!("on purpose")).is_none());
    }
}
