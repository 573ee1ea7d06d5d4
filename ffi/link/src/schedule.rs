//! How soon a link's threads get a processor.
#![allow(unsafe_code)]

/// Length of a time slice in nanoseconds; the kernel's minimum.
const SLICE: u64 = 100_000;

/// Asks for exact timers, and for short time slices, so that the calling thread runs as soon as it is woken even if programs that poll
/// occupy all processors: a thread with slices as long as theirs waits until one of theirs ends, some milliseconds. Linux before 6.12 has
/// no such choice.
pub fn be_prompt() {
    // The default lets the kernel delay a short sleep by 50 us.
    let _ = nix::sys::prctl::set_timerslack(1);
    // SAFETY: plain structure of integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes) as libc::c_uint;
    // SAFETY: the kernel writes at most `size` bytes of the structure, which lives across both calls, and reads its `size` bytes.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 {
            attributes.sched_runtime = SLICE;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}
