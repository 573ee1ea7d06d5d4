//! The library that is preloaded into programs in virtual time (`LD_PRELOAD`). It replaces their clocks, cycle counter, sleeps and other
//! waits, and observes the messages they send by files and sockets. docs/time-inside.md describes it.
//!
//! It uses the board that `IRONVERBS_CLOCK` names. Without one, every call goes to the kernel.
#![allow(unsafe_code)]

mod alarms;
mod clocks;
mod conditions;
mod counter;
mod locks;
mod own;
mod programs;
mod sockets;
mod threads;
mod timers;
mod waits;

use clock::{Board, Player};
use libc::{c_char, c_int, timespec};
use std::{
    ffi::{CStr, OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::OnceLock,
};

/// Names the board.
const VARIABLE: &str = "IRONVERBS_CLOCK";

static BOARD: OnceLock<Option<Board>> = OnceLock::new();

/// The calling thread as a player, if the program is in virtual time.
fn player() -> Option<(Board, Player)> {
    // Only the constructor searches: other callers may be inside of a call.
    let board = (*BOARD.get()?)?;
    Some((board, board.player()?))
}

/// The value of our variable in the initial environment, which libc has not copied yet.
///
/// # Safety
/// `environment` is null, or the beginning of a list of strings that ends with null.
unsafe fn variable(mut environment: *const *const c_char) -> Option<OsString> {
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(one) = environment.as_ref().filter(|one| !one.is_null()) {
            let text = CStr::from_ptr(*one).to_bytes();
            if let Some(value) =
                text.strip_prefix(VARIABLE.as_bytes()).and_then(|text| text.strip_prefix(b"="))
            {
                return Some(OsStr::from_bytes(value).to_owned());
            }
            environment = environment.add(1);
        }
    }
    None
}

unsafe extern "C" fn begin(_argc: c_int, _argv: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the loader gives what the kernel gave the program.
    let path = unsafe { variable(environment) };
    let found = path.and_then(|path| Board::find(Path::new(&path)).ok().flatten());
    let board = *BOARD.get_or_init(|| found);
    if let Some(board) = board {
        counter::take();
        let _ = board.player();
    }
}

/// The loader runs this before the constructors of other libraries (build.rs), because some of them measure the counter.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

/// Picoseconds of a nanosecond.
const PS: u64 = 1000;

/// A time as nanoseconds, if it is valid.
fn nanoseconds(at: &timespec) -> Option<u64> {
    let (seconds, rest) = (u64::try_from(at.tv_sec).ok()?, u64::try_from(at.tv_nsec).ok()?);
    (rest < 1_000_000_000).then_some(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// Nanoseconds as a time.
fn time_of(ns: u64) -> timespec {
    timespec { tv_sec: (ns / 1_000_000_000) as libc::time_t, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// The calling thread's errno, restored after calls of our own.
struct Errno(c_int);

impl Errno {
    fn keep() -> Self {
        Self(errno())
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        fail(self.0);
    }
}

/// The calling thread's errno.
fn errno() -> c_int {
    // SAFETY: it is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
fn fail(errno: c_int) -> c_int {
    // SAFETY: it is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}
