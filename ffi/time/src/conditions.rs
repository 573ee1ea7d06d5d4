//! Waits for condition variables with a time limit, in the adapter's time.
//!
//! A series of short waits of libc would lose a signal that comes between two of them. The thread therefore waits without a limit, and a
//! timer of this library ends the wait by waking all threads that wait for the condition variable. POSIX permits such spurious wakeups.

use super::{
    nanoseconds,
    own::instead,
    player, timers,
    waits::{deadline, in_kernel, left},
};
use libc::{
    CLOCK_MONOTONIC, CLOCK_REALTIME, c_int, clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t,
    timespec,
};
use std::{
    mem::zeroed,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::*},
    },
};

/// A condition variable as words.
const WORDS: usize = size_of::<pthread_cond_t>() / 4;

/// A new condition variable, as words, with limits measured by `clock`.
fn words(clock: clockid_t) -> [u32; WORDS] {
    // SAFETY: attributes and variable are ours, and are initialized and destroyed in the order that libc requires; a condition variable
    // consists of whole words, and may be all zeros.
    unsafe {
        let (mut kind, mut condition): (pthread_condattr_t, pthread_cond_t) = (zeroed(), zeroed());
        libc::pthread_condattr_init(&raw mut kind);
        libc::pthread_condattr_setclock(&raw mut kind, clock);
        libc::pthread_cond_init(&raw mut condition, &raw const kind);
        let words = std::mem::transmute::<pthread_cond_t, [u32; WORDS]>(condition);
        libc::pthread_cond_destroy(&raw mut condition);
        libc::pthread_condattr_destroy(&raw mut kind);
        words
    }
}

/// The clock that measures the limits of `condition`. libc has no call that returns it, and the flag's place differs between releases, so
/// it is found by comparing two condition variables.
///
/// # Safety
/// `condition` points to a condition variable.
unsafe fn clock_of(condition: *const pthread_cond_t) -> clockid_t {
    static FLAG: OnceLock<Option<(usize, u32)>> = OnceLock::new();
    let flag = FLAG.get_or_init(|| {
        let (real, monotonic) = (words(CLOCK_REALTIME), words(CLOCK_MONOTONIC));
        let word = (0..WORDS).find(|word| real[*word] != monotonic[*word])?;
        Some((word, real[word] ^ monotonic[word]))
    });
    // SAFETY: the caller's promise, and the word is one of its words; other threads write to it by atomic operations alone.
    let is_set = |(word, bit)| unsafe { (*condition.cast::<AtomicU32>().add(word)).load(Relaxed) & bit != 0 };
    if flag.is_some_and(is_set) { CLOCK_MONOTONIC } else { CLOCK_REALTIME }
}

/// Waits until `clock` is `at`. Uses libc's own `call` if the limit is in real time: for programs outside of virtual time, threads of a
/// provider, and limits that have passed.
///
/// # Safety
/// As of `pthread_cond_clockwait`.
unsafe fn waited(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    (clock, at): (clockid_t, *const timespec),
    call: impl Fn(*const timespec) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise: it is null, or a time.
    let until = unsafe { at.as_ref() }.and_then(nanoseconds).and_then(|ns| deadline(clock, ns));
    let Some(until) = until else { return call(at) };
    let in_time =
        player().filter(|(_, player)| !player.is_apart() && !player.calls() && player.now() < until);
    // SAFETY: the caller's promise.
    let wait = || unsafe { libc::pthread_cond_wait(condition, mutex) };
    in_time.and_then(|_| timers::wait_limited(condition, until, wait)).unwrap_or_else(|| {
        let at = in_kernel(clock, left(until));
        call(&raw const at)
    })
}

instead! {
    fn pthread_cond_timedwait(
        condition: *mut pthread_cond_t,
        mutex: *mut pthread_mutex_t,
        at: *const timespec,
    ) -> c_int, or libc::ENOSYS; {
        waited(condition, mutex, (clock_of(condition), at), |at| own(condition, mutex, at))
    }

    fn pthread_cond_clockwait(
        condition: *mut pthread_cond_t,
        mutex: *mut pthread_mutex_t,
        clock: clockid_t,
        at: *const timespec,
    ) -> c_int, or libc::ENOSYS; {
        waited(condition, mutex, (clock, at), |at| own(condition, mutex, clock, at))
    }
}
