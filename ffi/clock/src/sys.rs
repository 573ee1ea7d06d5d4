//! System calls that bypass the replaced functions in programs with virtual clocks.

use std::{sync::atomic::AtomicU32, time::Duration};

/// Passed by our own futex waits in an argument that the kernel ignores, which distinguishes them from waits of programs.
pub const OURS: usize = 0x6972_6f6e;

/// Sleeps while `word` is `seen`, until it is woken or `limit` is over.
pub fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit =
        libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: both are valid for the call, which reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit, OURS) };
}

/// Wakes all threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is valid for the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Sleeps for `time` in real time.
pub fn sleep(time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the kernel reads `time`; it has nothing to write.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>()) };
}

fn kernel_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time to `now`.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The kernel's own CLOCK_MONOTONIC, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    kernel_ns(libc::CLOCK_MONOTONIC)
}

/// The kernel's own CLOCK_REALTIME, in nanoseconds.
pub fn realtime_ns() -> u64 {
    kernel_ns(libc::CLOCK_REALTIME)
}

/// The calling thread and its process.
pub fn thread() -> (u32, u32) {
    // SAFETY: always succeeds.
    unsafe { (libc::syscall(libc::SYS_gettid) as u32, libc::getpid() as u32) }
}

/// The kernel's letter for a thread's state (proc(5)). `None` if the thread is gone.
pub fn state(tid: u32, pid: u32) -> Option<char> {
    let path = std::ffi::CString::new(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let mut stat = [0u8; 512];
    // SAFETY: the path ends with a zero, the kernel writes no more bytes than there are, and the descriptor is ours.
    let len = unsafe {
        let fd =
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let len = libc::syscall(libc::SYS_read, fd, stat.as_mut_ptr(), stat.len());
        libc::syscall(libc::SYS_close, fd);
        usize::try_from(len).ok()?
    };
    // The name may contain any characters; what follows it contains no parenthesis.
    let name = stat[..len].iter().rposition(|byte| *byte == b')')?;
    stat.get(name + 2).map(|letter| char::from(*letter))
}
