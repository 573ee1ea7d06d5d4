//! Waits for files that end at a time, which is the node's.

use super::{Errno, PS, nanoseconds, player, time_of};
use libc::{c_int, c_long, c_void, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use std::ptr::{null, null_mut};

/// How long the kernel waits before it is asked whether the time has come, in nanoseconds: at first, and at most.
const SLICES: (u64, u64) = (250_000, 16_000_000);
/// Bytes of the kernel's own `sigset_t`.
const SIGNALS: size_t = 8;

/// Waits by `wait`, which is given nanoseconds, for `limit` of them. Returns what that returned, and how many nanoseconds were left. `None` if it
/// is the kernel's matter, as where the limit is 0, or none, or none that makes sense.
fn waited(limit: Option<u64>, mut wait: impl FnMut(u64) -> c_long) -> Option<(c_int, u64)> {
    let limit = limit?;
    let (board, player) = player().filter(|(_, player)| limit > 0 && !player.is_apart())?;
    let errno = Errno::keep();
    let until = player.now().saturating_add(limit.saturating_mul(PS));
    drop(errno);
    let mut found = wait(0);
    if found == 0 {
        // This thread may have done what others wait for, so those have another look.
        board.speak();
        let waiting = player.limit(until);
        let mut slice = SLICES.0;
        while found == 0 && !waiting.is_over() {
            found = wait(slice);
            slice = (2 * slice).min(SLICES.1);
        }
        if found == 0 {
            found = wait(0);
        }
    }
    let errno = Errno::keep();
    let left = until.saturating_sub(player.now()) / PS;
    drop(errno);
    Some((found as c_int, left))
}

/// Milliseconds as nanoseconds. `None` is without a limit.
fn of_millis(millis: c_int) -> Option<u64> {
    u64::try_from(millis).ok().map(|millis| millis * 1_000_000)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(files: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    let limit = of_millis(millis);
    let at = limit.map(time_of);
    let at = at.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: the caller's promise.
    unsafe { ppoll(files, count, at, null()) }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    files: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let call = |at: *mut timespec| {
        // SAFETY: the kernel checks what it is given, and writes to a time of ours.
        unsafe { libc::syscall(libc::SYS_ppoll, files, count, at, mask, SIGNALS) }
    };
    // SAFETY: the caller's promise: it is null, or a time.
    let limit = unsafe { limit.as_ref() }.copied();
    match waited(limit.as_ref().and_then(nanoseconds), |ns| {
        let mut at = time_of(ns);
        call(&raw mut at)
    }) {
        Some((found, _)) => found,
        None => match limit {
            Some(mut at) => call(&raw mut at) as c_int,
            None => call(null_mut()) as c_int,
        },
    }
}

/// Programs call this that were compiled to have an array's size checked; they say how many bytes it has.
///
/// # Safety
/// As of `poll`, for an array of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(files: *mut pollfd, count: nfds_t, millis: c_int, size: size_t) -> c_int {
    if size as u64 / (size_of::<pollfd>() as u64) < count {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { poll(files, count, millis) }
}

/// Sets of files as the kernel takes them: it writes to them also when none is ready.
struct Sets {
    theirs: [*mut c_void; 3],
    asked: [Vec<u8>; 3],
}

impl Sets {
    /// # Safety
    /// Each is null, or has a bit for each of `count` files, in whole words.
    unsafe fn of(count: c_int, theirs: [*mut fd_set; 3]) -> Self {
        let bytes = usize::try_from(count).unwrap_or(0).div_ceil(64) * 8;
        let theirs = theirs.map(|set| set.cast::<c_void>());
        let asked = theirs.map(|set| match set.is_null() {
            true => Vec::new(),
            // SAFETY: the caller's promise.
            false => unsafe { std::slice::from_raw_parts(set.cast::<u8>(), bytes) }.to_vec(),
        });
        Self { theirs, asked }
    }

    /// Asks for the same files once more.
    fn restore(&mut self) {
        for (theirs, asked) in self.theirs.iter().zip(&self.asked) {
            if !theirs.is_null() {
                // SAFETY: as many bytes were read from there.
                unsafe { theirs.cast::<u8>().copy_from_nonoverlapping(asked.as_ptr(), asked.len()) };
            }
        }
    }
}

/// Waits for files of sets.
///
/// # Safety
/// As of `pselect` in libc.
unsafe fn selected(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: Option<timespec>,
    mask: *const sigset_t,
) -> (c_int, u64) {
    let masked = (mask, SIGNALS);
    let call = |at: *mut timespec| {
        let [reads, writes, others] = sets;
        let masked: *const (*const sigset_t, size_t) = &raw const masked;
        // SAFETY: the kernel checks what it is given, reads the pair, and writes to a time of ours.
        unsafe { libc::syscall(libc::SYS_pselect6, count, reads, writes, others, at, masked) }
    };
    let Some(mut at) = limit else { return (call(null_mut()) as c_int, 0) };
    let ns = nanoseconds(&at);
    // The kernel refuses sets that cannot be read, so nobody else looks at them first.
    if ns.is_none_or(|ns| ns == 0) || player().is_none() {
        let found = call(&raw mut at) as c_int;
        return (found, nanoseconds(&at).unwrap_or(0));
    }
    // SAFETY: the caller's promise.
    let mut asked = unsafe { Sets::of(count, sets) };
    let waited = waited(ns, |ns| {
        asked.restore();
        let mut at = time_of(ns);
        call(&raw mut at)
    });
    waited.unwrap_or_else(|| (call(&raw mut at) as c_int, nanoseconds(&at).unwrap_or(0)))
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    limit: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise: it is null, or a time.
    let theirs = unsafe { limit.as_mut() };
    let at =
        theirs.as_ref().map(|at| timespec { tv_sec: at.tv_sec, tv_nsec: at.tv_usec.saturating_mul(1000) });
    // SAFETY: the caller's promise.
    let (found, left) = unsafe { selected(count, [reads, writes, others], at, null()) };
    if let Some(theirs) = theirs {
        *theirs = timeval {
            tv_sec: (left / 1_000_000_000) as libc::time_t,
            tv_usec: (left % 1_000_000_000 / 1000) as libc::suseconds_t,
        };
    }
    found
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise: it is null, or a time.
    let at = unsafe { limit.as_ref() }.copied();
    // SAFETY: the caller's promise.
    unsafe { selected(count, [reads, writes, others], at, mask) }.0
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { epoll_pwait(fd, events, most, millis, null()) }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    millis: c_int,
    mask: *const sigset_t,
) -> c_int {
    let call = |millis: c_int| {
        // SAFETY: the kernel checks what it is given.
        unsafe { libc::syscall(libc::SYS_epoll_pwait, fd, events, most, millis, mask, SIGNALS) }
    };
    // A wait of less than a millisecond would be none.
    let whole = |ns: u64| ns.div_ceil(1_000_000) as c_int;
    match waited(of_millis(millis), |ns| call(whole(ns))) {
        Some((found, _)) => found,
        None => call(millis) as c_int,
    }
}
