//! Waits for locks, semaphores and futexes with a time limit, in the adapter's time.

use super::{
    errno, fail, nanoseconds,
    own::instead,
    time_of,
    waits::{after, deadline, in_kernel, waited_until},
};
use libc::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, ETIMEDOUT, c_int, c_long, c_void, clockid_t, pthread_mutex_t,
    pthread_rwlock_t, pthread_t, sem_t, timespec,
};

/// Waits until `clock` is `at` by calls of `take`, which gets a time of this machine's clock and returns 0 or an error number.
///
/// # Safety
/// `at` is null, or can be read.
unsafe fn taken(clock: clockid_t, at: *const timespec, take: impl Fn(*const timespec) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let until = unsafe { at.as_ref() }.and_then(nanoseconds).and_then(|ns| deadline(clock, ns));
    let Some(until) = until else { return take(at) };
    let found = waited_until(until, |ns| {
        let at = in_kernel(clock, ns);
        Some(take(&raw const at)).filter(|error| *error != ETIMEDOUT)
    });
    found.unwrap_or(ETIMEDOUT)
}

/// Defines two functions: one with a limit of CLOCK_REALTIME, and one that is given the clock.
macro_rules! timed {
    ($timed:ident, $clocked:ident($($arg:ident: $kind:ty),*)) => {
        instead! {
            fn $timed($($arg: $kind,)* at: *const timespec) -> c_int, or libc::ENOSYS; {
                taken(CLOCK_REALTIME, at, |at| own($($arg,)* at))
            }

            fn $clocked($($arg: $kind,)* clock: clockid_t, at: *const timespec) -> c_int, or libc::ENOSYS; {
                taken(clock, at, |at| own($($arg,)* clock, at))
            }
        }
    };
}

timed!(pthread_mutex_timedlock, pthread_mutex_clocklock(mutex: *mut pthread_mutex_t));
timed!(pthread_rwlock_timedrdlock, pthread_rwlock_clockrdlock(lock: *mut pthread_rwlock_t));
timed!(pthread_rwlock_timedwrlock, pthread_rwlock_clockwrlock(lock: *mut pthread_rwlock_t));
timed!(pthread_timedjoin_np, pthread_clockjoin_np(thread: pthread_t, value: *mut *mut c_void));

/// The error number of a call that reports it in errno.
fn error_of(result: c_int) -> c_int {
    if result == 0 { 0 } else { errno() }
}

/// Reports an error number in errno.
fn by_errno(error: c_int) -> c_int {
    if error == 0 { 0 } else { fail(error) }
}

instead! {
    fn sem_timedwait(semaphore: *mut sem_t, at: *const timespec) -> c_int, or fail(libc::ENOSYS); {
        by_errno(taken(CLOCK_REALTIME, at, |at| error_of(own(semaphore, at))))
    }

    fn sem_clockwait(semaphore: *mut sem_t, clock: clockid_t, at: *const timespec) -> c_int, or fail(libc::ENOSYS); {
        by_errno(taken(clock, at, |at| error_of(own(semaphore, clock, at))))
    }

    /// Implements futex waits of libstdc++, Rust's standard library and others that bypass libc's locks. All other system calls go to the
    /// kernel; libc's function takes as many words as the call needs.
    fn syscall(
        number: c_long,
        word: c_long,
        operation: c_long,
        value: c_long,
        at: *const timespec,
        other: c_long,
        mask: c_long,
    ) -> c_long, or fail(libc::ENOSYS).into(); {
        let command = operation as c_int & libc::FUTEX_CMD_MASK;
        let waits = number == libc::SYS_futex && matches!(command, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
        if !waits || other == clock::OURS as c_long {
            return own(number, word, operation, value, at, other, mask);
        }
        let of_real = operation & c_long::from(libc::FUTEX_CLOCK_REALTIME) != 0;
        let until = at.as_ref().and_then(nanoseconds).and_then(|ns| match command {
            libc::FUTEX_WAIT => after(ns),
            _ => deadline(if of_real { CLOCK_REALTIME } else { CLOCK_MONOTONIC }, ns),
        });
        let Some(until) = until else { return own(number, word, operation, value, at, other, mask) };
        let found = waited_until(until, |ns| {
            let at = if command == libc::FUTEX_WAIT { time_of(ns) } else { in_kernel(CLOCK_MONOTONIC, ns) };
            let operation = operation & !c_long::from(libc::FUTEX_CLOCK_REALTIME);
            let result = own(number, word, operation, value, &raw const at, other, mask);
            let error = if result < 0 { errno() } else { 0 };
            (error != ETIMEDOUT).then_some((result, error))
        });
        match found.unwrap_or((-1, ETIMEDOUT)) {
            (result, 0) => result,
            (_, error) => fail(error).into(),
        }
    }
}
