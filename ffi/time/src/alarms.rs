//! Alarms: SIGALRM at a time of the node.

use super::{Errno, PS, player};
use clock::Player;
use libc::{c_int, c_uint, itimerval, timeval};

/// Picoseconds of a time that is a number of seconds and microseconds.
fn ps_of(at: timeval) -> Option<u64> {
    let (seconds, us) = (u64::try_from(at.tv_sec).ok()?, u64::try_from(at.tv_usec).ok()?);
    (us < 1_000_000).then_some(seconds.saturating_mul(1_000_000).saturating_add(us).saturating_mul(1000 * PS))
}

/// The other way round. A time that is not over is not zero.
fn time_of(ps: u64) -> timeval {
    let us = ps.div_ceil(1000 * PS);
    timeval { tv_sec: (us / 1_000_000) as libc::time_t, tv_usec: (us % 1_000_000) as libc::suseconds_t }
}

/// Tells what a timer says at `now` that rings at `at`, and every `interval` from then on.
fn said((at, interval): (u64, u64), now: u64) -> itimerval {
    let left = if at == 0 { 0 } else { at.saturating_sub(now).max(1) };
    itimerval { it_interval: time_of(interval), it_value: time_of(left) }
}

/// The alarm of this process as it was, and the time; `change` may set another one. `None` if it is the kernel's matter.
fn with_alarm(change: impl FnOnce(&Player, u64) -> Option<(u64, u64)>) -> Option<itimerval> {
    let _errno = Errno::keep();
    let (_, player) = player()?;
    let now = player.now();
    Some(said(change(&player, now)?, now))
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setitimer(which: c_int, new: *const itimerval, old: *mut itimerval) -> c_int {
    // SAFETY: the caller's promise: it is null, or can be read.
    let asked = unsafe { new.as_ref() }.filter(|_| which == libc::ITIMER_REAL);
    let times = asked.and_then(|new| Some((ps_of(new.it_value)?, ps_of(new.it_interval)?)));
    let before = times.and_then(|(value, interval)| {
        with_alarm(|player, now| {
            player.set_alarm(if value == 0 { 0 } else { now.saturating_add(value) }, interval)
        })
    });
    match before {
        Some(before) => {
            if !old.is_null() {
                // SAFETY: the caller's promise.
                unsafe { old.write(before) };
            }
            0
        }
        // SAFETY: the kernel checks what it is given.
        None => unsafe { libc::syscall(libc::SYS_setitimer, which, new, old) as c_int },
    }
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getitimer(which: c_int, now: *mut itimerval) -> c_int {
    let ours = which == libc::ITIMER_REAL && !now.is_null();
    let says = if ours { with_alarm(|player, _| player.alarm_of_process()) } else { None };
    match says {
        Some(says) => {
            // SAFETY: the caller's promise; it is not null.
            unsafe { now.write(says) };
            0
        }
        // SAFETY: the kernel checks what it is given.
        None => unsafe { libc::syscall(libc::SYS_getitimer, which, now) as c_int },
    }
}

/// Asks for SIGALRM in so many seconds. Returns how many were left of those asked for before.
#[unsafe(no_mangle)]
pub extern "C" fn alarm(seconds: c_uint) -> c_uint {
    let zero = timeval { tv_sec: 0, tv_usec: 0 };
    let new = itimerval { it_interval: zero, it_value: timeval { tv_sec: seconds.into(), tv_usec: 0 } };
    let mut old = itimerval { it_interval: zero, it_value: zero };
    // SAFETY: both are ours.
    unsafe { setitimer(libc::ITIMER_REAL, &raw const new, &raw mut old) };
    // Rounded, but what is not over is not nothing (alarm(2)).
    let (whole, us) = (old.it_value.tv_sec as c_uint, old.it_value.tv_usec);
    whole + c_uint::from(us >= 500_000 || (whole == 0 && us > 0))
}
