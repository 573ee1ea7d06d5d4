//! Waits for locks, semaphores and futexes with a limit, in the node's time.

use super::{
    fail, nanoseconds,
    own::own,
    time_of,
    waits::{deadline, in_kernel, waited_until},
};
use libc::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, ETIMEDOUT, c_int, c_long, c_void, clockid_t, pthread_mutex_t,
    pthread_rwlock_t, pthread_t, sem_t, timespec,
};

/// Waits until `clock` is `at` by calls of `take`, which gets a clock and a time of it and returns 0 or an error number.
///
/// # Safety
/// `at` is null, or can be read.
unsafe fn taken(
    clock: clockid_t,
    at: *const timespec,
    mut take: impl FnMut(clockid_t, *const timespec) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let until = unsafe { at.as_ref() }.and_then(nanoseconds).and_then(|ns| deadline(clock, ns));
    let Some(until) = until else { return take(clock, at) };
    let found = waited_until(until, |ns| {
        let at = in_kernel(ns);
        Some(take(CLOCK_MONOTONIC, &raw const at)).filter(|error| *error != ETIMEDOUT)
    });
    found.unwrap_or(ETIMEDOUT)
}

/// Defines the function whose limit is a time of CLOCK_REALTIME, and the one with a clock argument, which implements both.
macro_rules! timed {
    ($timed:ident, $clocked:ident($($arg:ident: $kind:ty),*)) => {
        /// # Safety
        /// As of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $timed($($arg: $kind,)* at: *const timespec) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { $clocked($($arg,)* CLOCK_REALTIME, at) }
        }

        /// # Safety
        /// As of the function of this name in libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $clocked($($arg: $kind,)* clock: clockid_t, at: *const timespec) -> c_int {
            // SAFETY: the caller's promise; libc's function is of this type.
            unsafe {
                taken(clock, at, |clock, at| {
                    own!($clocked($($arg => $kind,)* clock => clockid_t, at => *const timespec) -> c_int, else libc::ENOSYS)
                })
            }
        }
    };
}

timed!(pthread_mutex_timedlock, pthread_mutex_clocklock(mutex: *mut pthread_mutex_t));
timed!(pthread_rwlock_timedrdlock, pthread_rwlock_clockrdlock(lock: *mut pthread_rwlock_t));
timed!(pthread_rwlock_timedwrlock, pthread_rwlock_clockwrlock(lock: *mut pthread_rwlock_t));
timed!(pthread_timedjoin_np, pthread_clockjoin_np(thread: pthread_t, value: *mut *mut c_void));

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_timedwait(semaphore: *mut sem_t, at: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { sem_clockwait(semaphore, CLOCK_REALTIME, at) }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_clockwait(
    semaphore: *mut sem_t,
    clock: clockid_t,
    at: *const timespec,
) -> c_int {
    // SAFETY: the caller's promise; libc's function is of this type, and says by errno why it fails.
    let error = unsafe {
        taken(clock, at, |clock, at| {
            match own!(sem_clockwait(semaphore => *mut sem_t, clock => clockid_t, at => *const timespec) -> c_int,
                else fail(libc::ENOSYS))
            {
                0 => 0,
                _ => *libc::__errno_location(),
            }
        })
    };
    if error == 0 { 0 } else { fail(error) }
}

/// Implements futex waits of libstdc++, Rust's standard library and others that do without libc's locks. All other calls go to the kernel.
///
/// # Safety
/// As of the function of this name in libc, which takes as many words as the call needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    word: c_long,
    operation: c_long,
    value: c_long,
    at: *const timespec,
    other: c_long,
    mask: c_long,
) -> c_long {
    let call = |operation: c_long, at: *const timespec| {
        // SAFETY: the caller's promise; libc's function is of this type.
        unsafe {
            own!(syscall(number => c_long, word => c_long, operation => c_long, value => c_long, at => *const timespec, other => c_long,
                mask => c_long) -> c_long, else fail(libc::ENOSYS).into())
        }
    };
    let command = operation as c_int & libc::FUTEX_CMD_MASK;
    let waits = number == libc::SYS_futex && matches!(command, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
    if !waits || at.is_null() || other == clock::OURS as c_long {
        return call(operation, at);
    }
    let of_real = operation & c_long::from(libc::FUTEX_CLOCK_REALTIME) != 0;
    // SAFETY: the caller's promise: a futex that is waited for has a time here, or null.
    let ns = unsafe { at.as_ref() }.and_then(nanoseconds);
    let until = ns.and_then(|ns| match command {
        libc::FUTEX_WAIT => super::waits::after(ns),
        _ => deadline(if of_real { CLOCK_REALTIME } else { CLOCK_MONOTONIC }, ns),
    });
    let Some(until) = until else { return call(operation, at) };
    let found = waited_until(until, |ns| {
        let at = if command == libc::FUTEX_WAIT { time_of(ns) } else { in_kernel(ns) };
        let result = call(operation & !c_long::from(libc::FUTEX_CLOCK_REALTIME), &raw const at);
        // SAFETY: it is the calling thread's own.
        let errno = if result < 0 { unsafe { *libc::__errno_location() } } else { 0 };
        (errno != ETIMEDOUT).then_some((result, errno))
    });
    match found.unwrap_or((-1, ETIMEDOUT)) {
        (result, 0) => result,
        (_, errno) => fail(errno).into(),
    }
}
