//! The calls that set the process's alarm: SIGALRM at a time of the adapter.

use super::{own::instead, timers};
use libc::{c_int, c_uint, itimerspec, itimerval, timespec, timeval};

fn of_micros(at: timeval) -> timespec {
    // An invalid time stays invalid.
    timespec { tv_sec: at.tv_sec, tv_nsec: at.tv_usec.saturating_mul(1000) }
}

/// Rounds up, so that a remaining time is not zero.
fn in_micros(at: timespec) -> timeval {
    let us = (at.tv_nsec + 999) / 1000;
    timeval { tv_sec: at.tv_sec + us / 1_000_000, tv_usec: us % 1_000_000 }
}

/// Returns the alarm, and sets it to `new` if given. Returns `None` if the alarm is the kernel's.
fn ask(new: Option<itimerval>) -> Option<itimerval> {
    let new = new
        .map(|new| itimerspec { it_interval: of_micros(new.it_interval), it_value: of_micros(new.it_value) });
    let before = timers::alarm(new.as_ref())?;
    Some(itimerval { it_interval: in_micros(before.it_interval), it_value: in_micros(before.it_value) })
}

/// Calls `f`, which replaces the process's program (exec). The remaining time of its alarm then counts in real time, because exec ends the
/// thread that waits for it.
pub fn hand_over<R>(f: impl FnOnce() -> R) -> R {
    let left = timers::has_alarm().then(|| ask(None)).flatten();
    let Some(mut left) = left else { return f() };
    let set = |alarm: &itimerval| {
        let none: *mut itimerval = std::ptr::null_mut();
        // SAFETY: the kernel reads what is ours.
        unsafe { libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, std::ptr::from_ref(alarm), none) }
    };
    set(&left);
    let result = f();
    // The call failed, so the program is still the same.
    left.it_value = timeval { tv_sec: 0, tv_usec: 0 };
    set(&left);
    result
}

instead! {
    fn setitimer(which: c_int, new: *const itimerval, old: *mut itimerval) -> c_int {
        let asked = new.as_ref().filter(|_| which == libc::ITIMER_REAL);
        let Some(before) = asked.and_then(|new| ask(Some(*new))) else {
            return libc::syscall(libc::SYS_setitimer, which, new, old) as c_int;
        };
        if !old.is_null() {
            old.write(before);
        }
        0
    }

    fn getitimer(which: c_int, now: *mut itimerval) -> c_int {
        let ours = which == libc::ITIMER_REAL && !now.is_null();
        let Some(says) = ours.then(|| ask(None)).flatten() else {
            return libc::syscall(libc::SYS_getitimer, which, now) as c_int;
        };
        now.write(says);
        0
    }

    /// Requests SIGALRM in this many seconds. Returns the seconds that were left of the previous request.
    fn alarm(seconds: c_uint) -> c_uint {
        let zero = timeval { tv_sec: 0, tv_usec: 0 };
        let new = itimerval { it_interval: zero, it_value: timeval { tv_sec: seconds.into(), tv_usec: 0 } };
        let mut old = itimerval { it_interval: zero, it_value: zero };
        setitimer(libc::ITIMER_REAL, &raw const new, &raw mut old);
        // Rounded, but less than a second left is not reported as none (alarm(2)).
        let (whole, us) = (old.it_value.tv_sec as c_uint, old.it_value.tv_usec);
        whole + c_uint::from(us >= 500_000 || (whole == 0 && us > 0))
    }
}
