//! Waits for files with a time limit, in the adapter's time.

use super::{Errno, PS, errno, nanoseconds, own::instead, player, time_of};
use clock::Call;
use libc::{
    c_int, c_long, c_short, c_void, clockid_t, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t,
    timespec, timeval,
};
use std::ptr::{null, null_mut};

/// Nanoseconds of a wait in the kernel before the time is checked again: of the first such wait, and at most.
const SLICES: (u64, u64) = (250_000, 16_000_000);
/// Bytes of the kernel's own `sigset_t`.
const SIGNALS: size_t = 8;

/// The adapter's time at which `clock` is `ns`. Returns `None` if the caller is not in virtual time.
pub fn deadline(clock: clockid_t, ns: u64) -> Option<u64> {
    let (board, _) = player()?;
    Some(ns.saturating_sub(board.wall(0, clock == libc::CLOCK_REALTIME)).saturating_mul(PS))
}

/// The adapter's time in `ns` nanoseconds. Returns `None` if the caller is not in virtual time.
pub fn after(ns: u64) -> Option<u64> {
    let _errno = Errno::keep();
    player().map(|(_, player)| player.now().saturating_add(ns.saturating_mul(PS)))
}

/// Nanoseconds left until a time of the adapter.
pub fn left(until: u64) -> u64 {
    let _errno = Errno::keep();
    player().map_or(0, |(_, player)| until.saturating_sub(player.now()) / PS)
}

/// The value of the kernel's own `clock` in `ns` nanoseconds.
pub fn in_kernel(clock: clockid_t, ns: u64) -> timespec {
    let now = if clock == libc::CLOCK_REALTIME { clock::realtime_ns() } else { clock::monotonic_ns() };
    time_of(now.saturating_add(ns))
}

/// Calls `wait`, which waits for at most a given number of nanoseconds, until it finds something or the adapter's time is `until`. Threads
/// of a provider, and threads inside of a provider's call, wait in real time.
pub fn waited_until<R>(until: u64, mut wait: impl FnMut(u64) -> Option<R>) -> Option<R> {
    let errno = Errno::keep();
    let limited = player().filter(|(_, player)| !player.is_apart() && !player.calls());
    drop(errno);
    let Some((board, player)) = limited else { return wait(left(until)) };
    // Checking a lock may appear as a sleep in the kernel, although the program does not sleep.
    let look = Call::begin();
    if let Some(found) = wait(0) {
        return Some(found);
    }
    drop(look);
    // This thread may have caused what others wait for, so they poll once more.
    board.speak();
    let waiting = player.limit(until);
    let mut slice = SLICES.0;
    while !waiting.is_over() {
        if let Some(found) = wait(slice) {
            return Some(found);
        }
        slice = (2 * slice).min(SLICES.1);
    }
    wait(0)
}

/// The same for files with a limit in nanoseconds, where `wait` returns 0 if it finds nothing. Returns its result and the nanoseconds
/// left, or `None` if the kernel has to wait: if `limit` is 0 or absent, or the caller is not in virtual time.
fn waited(limit: Option<u64>, mut wait: impl FnMut(u64) -> c_long) -> Option<(c_int, u64)> {
    let until = after(limit.filter(|ns| *ns > 0)?)?;
    let found = waited_until(until, |ns| Some(wait(ns)).filter(|found| *found != 0));
    Some((found.unwrap_or(0) as c_int, left(until)))
}

/// Waits at most `ns` nanoseconds until `fd` is ready for `events`. Returns at once for threads outside of virtual time, which wait in the
/// call that follows.
///
/// # Errors
/// The error number for that call: EAGAIN at the limit, or the error of the wait.
pub fn ready(fd: c_int, events: c_short, ns: u64) -> Result<(), c_int> {
    let mut file = pollfd { fd, events, revents: 0 };
    let found = waited(Some(ns), |ns| {
        let (at, mask): (_, *const sigset_t) = (time_of(ns), null());
        // SAFETY: the kernel accesses only memory of ours.
        unsafe { libc::syscall(libc::SYS_ppoll, &raw mut file, 1, &raw const at, mask, SIGNALS) }
    });
    match found {
        Some((0, _)) => Err(libc::EAGAIN),
        Some((failed, _)) if failed < 0 => Err(errno()),
        _ => Ok(()),
    }
}

/// Milliseconds as nanoseconds; `None` if there is no limit.
fn of_millis(millis: c_int) -> Option<u64> {
    u64::try_from(millis).ok().map(|millis| millis * 1_000_000)
}

/// Sets of files as the kernel takes them. It writes to them even if no file is ready.
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

    /// Restores the sets that were asked for.
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
    // The kernel refuses sets that cannot be read, so nothing else looks at them first.
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

instead! {
    fn poll(files: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
        let limit = of_millis(millis);
        let at = limit.map(time_of);
        let at = at.as_ref().map_or(null(), std::ptr::from_ref);
        ppoll(files, count, at, null())
    }

    fn ppoll(files: *mut pollfd, count: nfds_t, limit: *const timespec, mask: *const sigset_t) -> c_int {
        let call = |at: *mut timespec| libc::syscall(libc::SYS_ppoll, files, count, at, mask, SIGNALS);
        let limit = limit.as_ref().copied();
        let found = waited(limit.as_ref().and_then(nanoseconds), |ns| {
            let mut at = time_of(ns);
            call(&raw mut at)
        });
        match found {
            Some((found, _)) => found,
            None => match limit {
                Some(mut at) => call(&raw mut at) as c_int,
                None => call(null_mut()) as c_int,
            },
        }
    }

    /// Called by programs compiled with fortified functions, with the array's size in bytes.
    fn __poll_chk(files: *mut pollfd, count: nfds_t, millis: c_int, size: size_t) -> c_int {
        if size as u64 / (size_of::<pollfd>() as u64) < count {
            std::process::abort();
        }
        poll(files, count, millis)
    }

    fn select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set, limit: *mut timeval) -> c_int {
        let theirs = limit.as_mut();
        let at = theirs.as_ref().map(|at| timespec { tv_sec: at.tv_sec, tv_nsec: at.tv_usec.saturating_mul(1000) });
        let (found, left) = selected(count, [reads, writes, others], at, null());
        if let Some(theirs) = theirs {
            *theirs = timeval {
                tv_sec: (left / 1_000_000_000) as libc::time_t,
                tv_usec: (left % 1_000_000_000 / 1000) as libc::suseconds_t,
            };
        }
        found
    }

    fn pselect(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        others: *mut fd_set,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        selected(count, [reads, writes, others], limit.as_ref().copied(), mask).0
    }

    fn epoll_wait(fd: c_int, events: *mut epoll_event, most: c_int, millis: c_int) -> c_int {
        epoll_pwait(fd, events, most, millis, null())
    }

    fn epoll_pwait(fd: c_int, events: *mut epoll_event, most: c_int, millis: c_int, mask: *const sigset_t) -> c_int {
        let call = |millis: c_int| libc::syscall(libc::SYS_epoll_pwait, fd, events, most, millis, mask, SIGNALS);
        // Rounded up, since a wait of less than a millisecond would be none.
        let whole = |ns: u64| ns.div_ceil(1_000_000) as c_int;
        match waited(of_millis(millis), |ns| call(whole(ns))) {
            Some((found, _)) => found,
            None => call(millis) as c_int,
        }
    }
}
