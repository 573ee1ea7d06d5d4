//! Clocks and sleeps.

use super::{PS, errno, fail, nanoseconds, own::instead, player, time_of, timers::ring_due};
use libc::{c_int, c_uint, c_void, clockid_t, time_t, timespec, timeval, useconds_t};

/// Nanoseconds for which a thread that yields its processor does not run.
const YIELD: u64 = 1000;

/// Value of a clock in nanoseconds, rounded up to a multiple of `whole`. Reading it costs time. Returns `None` if the kernel has to
/// answer.
fn now(clock: clockid_t, whole: u64) -> Option<u64> {
    let real = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_TAI => true,
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_BOOTTIME => false,
        _ => return None,
    };
    let (board, player) = player()?;
    let time = player.spend(board.costs().clock);
    // While a thread does nothing but read clocks, time advances by these calls alone.
    ring_due(time, false);
    let says = board.wall(time, real);
    let later = says.next_multiple_of(whole);
    player.spend((later - says) * PS - if later > says { time % PS } else { 0 });
    Some(later)
}

/// Sleeps for `ns`, or until the clock reaches that time. Returns the nanoseconds left if a signal interrupted the sleep, and `None` if
/// the kernel has to do it.
fn slept(ns: u64, until: Option<bool>) -> Option<u64> {
    let (board, player) = player()?;
    let now = player.now();
    let end = match until {
        None => now.saturating_add(ns.saturating_mul(PS)),
        Some(real) => ns.saturating_sub(board.wall(0, real)).saturating_mul(PS),
    };
    Some(if end > now { player.sleep(end).div_ceil(PS) } else { 0 })
}

instead! {
    fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
        match now(clock, 1) {
            Some(ns) if !to.is_null() => {
                to.write(time_of(ns));
                0
            }
            _ => libc::syscall(libc::SYS_clock_gettime, clock, to) as c_int,
        }
    }

    fn gettimeofday(to: *mut timeval, zone: *mut c_void) -> c_int {
        // Programs calibrate the processor's counter by this clock; without rounding they find the same frequency in every run.
        match now(libc::CLOCK_REALTIME, 1000) {
            Some(ns) if !to.is_null() => {
                let us = ns / 1000;
                to.write(timeval { tv_sec: (us / 1_000_000) as time_t, tv_usec: (us % 1_000_000) as i64 });
                0
            }
            _ => libc::syscall(libc::SYS_gettimeofday, to, zone) as c_int,
        }
    }

    fn time(to: *mut time_t) -> time_t {
        let mut at = timespec { tv_sec: 0, tv_nsec: 0 };
        clock_gettime(libc::CLOCK_REALTIME, &raw mut at);
        if !to.is_null() {
            to.write(at.tv_sec);
        }
        at.tv_sec
    }

    fn nanosleep(how_long: *const timespec, left: *mut timespec) -> c_int {
        match how_long.as_ref().and_then(nanoseconds).map(|ns| slept(ns, None)) {
            Some(Some(0)) => 0,
            Some(Some(ns)) => {
                if !left.is_null() {
                    left.write(time_of(ns));
                }
                fail(libc::EINTR)
            }
            Some(None) => libc::syscall(libc::SYS_nanosleep, how_long, left) as c_int,
            None => fail(libc::EINVAL),
        }
    }

    fn clock_nanosleep(clock: clockid_t, flags: c_int, how_long: *const timespec, left: *mut timespec) -> c_int {
        let Some(ns) = how_long.as_ref().and_then(nanoseconds) else { return libc::EINVAL };
        let until = (flags & libc::TIMER_ABSTIME != 0).then_some(clock == libc::CLOCK_REALTIME);
        match slept(ns, until) {
            Some(0) => 0,
            Some(ns) => {
                // A caller of an absolute time computes the rest itself.
                if until.is_none() && !left.is_null() {
                    left.write(time_of(ns));
                }
                fail(libc::EINTR);
                libc::EINTR
            }
            None => match libc::syscall(libc::SYS_clock_nanosleep, clock, flags, how_long, left) {
                0 => 0,
                _ => errno(),
            },
        }
    }

    fn usleep(us: useconds_t) -> c_int {
        let how_long = timespec { tv_sec: (us / 1_000_000) as time_t, tv_nsec: i64::from(us % 1_000_000) * 1000 };
        nanosleep(&raw const how_long, std::ptr::null_mut())
    }

    fn sleep(seconds: c_uint) -> c_uint {
        let mut left = timespec { tv_sec: seconds as time_t, tv_nsec: 0 };
        let how_long = left;
        match nanosleep(&raw const how_long, &raw mut left) {
            0 => 0,
            _ => left.tv_sec as c_uint,
        }
    }

    /// The thread waits for another one, for a lock or for its turn. All waiting threads poll once more meanwhile, because they may be in
    /// a call that would find nothing.
    fn sched_yield() -> c_int {
        let Some((board, _)) = player() else {
            return libc::syscall(libc::SYS_sched_yield) as c_int;
        };
        board.speak();
        let _ = slept(YIELD, None);
        0
    }
}
