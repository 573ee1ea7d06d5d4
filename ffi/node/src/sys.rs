//! System calls that the standard library lacks, with safe wrappers where possible.
#![allow(unsafe_code)]

use migration::map_error;
use mmap_rs::{Mmap, MmapFlags, MmapMut, MmapOptions};
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl},
    sys::{
        eventfd::{EfdFlags, EventFd},
        prctl::{get_timerslack, set_timerslack},
        resource::{Resource, UsageWho, getrlimit, getrusage},
        uio::{RemoteIoVec, process_vm_readv},
    },
    unistd::{Pid, Whence, gettid, lseek},
};
use std::{
    fs::File,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering::SeqCst, fence},
};

fn done(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut t = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call writes `t`, and this clock always exists.
    let t = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, t.as_mut_ptr());
        t.assume_init()
    };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A shared mapping of a file, unmapped when dropped.
pub enum Shared {
    Read(Mmap),
    Change(MmapMut),
}

impl Shared {
    /// Maps `len` bytes at `offset` of `file`, for writing too if `write`.
    pub fn new(file: &File, offset: usize, len: usize, write: bool) -> io::Result<Self> {
        // A core dump need not contain other programs' work on the node.
        let flags = MmapFlags::SHARED | MmapFlags::NO_RESERVE | MmapFlags::NO_CORE_DUMP;
        let options = MmapOptions::new(len).map_err(map_error)?.with_flags(flags);
        // SAFETY: other processes write to the file and may truncate it. No slice of the mapping is created: `file::Mapped`, its only user,
        // takes the address, watches for missing pages, and returns atomics and the region, which has its own rules.
        let options = unsafe { options.with_file(file, offset as u64) };
        let mapped = if write { options.map_mut().map(Self::Change) } else { options.map().map(Self::Read) };
        mapped.map_err(map_error)
    }

    /// Its address.
    pub fn base(&self) -> io::Result<NonNull<u8>> {
        let at = match self {
            Self::Read(map) => map.as_ptr(),
            Self::Change(map) => map.as_ptr(),
        };
        NonNull::new(at.cast_mut()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

/// The process's file size limit: the kernel sends SIGXFSZ to a process that exceeds it.
pub fn file_size_limit() -> u64 {
    getrlimit(Resource::RLIMIT_FSIZE).map_or(libc::RLIM_INFINITY, |(soft, _)| soft)
}

/// Allocates a range of `file`, so that touching it cannot fail.
pub fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), offset as i64, len as i64)?)
}

/// Punches a hole into `file`: the range reads as zeros and needs no memory.
pub fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(file, mode, offset as i64, len as i64)?)
}

/// Overwrites a range of `file` with zeros. Holes remain holes.
pub fn clear(file: &File, offset: u64, len: u64) -> io::Result<()> {
    const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    // The file offset is not used for reading or writing.
    let seek = |from: u64, what| lseek(file, from as i64, what).map(|to| to as u64);
    let end = offset.saturating_add(len);
    let mut at = offset;
    while at < end {
        at = match seek(at, Whence::SeekData) {
            Err(Errno::ENXIO) => return Ok(()),
            data => data?,
        };
        let stop = seek(at, Whence::SeekHole)?.min(end);
        while at < stop {
            let now = ZEROS.len().min((stop - at) as usize);
            file.write_all_at(&ZEROS[..now], at)?;
            at += now as u64;
        }
    }
    Ok(())
}

/// A range of bytes of a file, by which processes lock something: its start and its length.
pub type Bytes = (i64, i64);

fn range_lock(kind: libc::c_int, (l_start, l_len): Bytes) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start, l_len, l_pid: 0 }
}

/// Locks a range of `file` for this process, exclusively if `alone`. Returns false if another process holds a part of it.
pub fn lock_range(file: &File, range: Bytes, alone: bool) -> io::Result<bool> {
    let lock = range_lock(if alone { libc::F_WRLCK } else { libc::F_RDLCK }, range);
    loop {
        match fcntl(file, FcntlArg::F_SETLK(&lock)) {
            Ok(_) => return Ok(true),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Releases a range.
pub fn unlock_range(file: &File, range: Bytes) {
    let _ = fcntl(file, FcntlArg::F_SETLK(&range_lock(libc::F_UNLCK, range)));
}

/// PID of the other process that holds a part of a range; 0 if it is hidden by a PID namespace.
pub fn range_holder(file: &File, range: Bytes) -> io::Result<Option<u32>> {
    let mut lock = range_lock(libc::F_WRLCK, range);
    fcntl(file, FcntlArg::F_GETLK(&mut lock))?;
    Ok((lock.l_type != libc::F_UNLCK as libc::c_short).then_some(lock.l_pid.max(0) as u32))
}

/// Runs `body` in a forked child, where it may do little more than make system calls, and returns its result.
#[cfg(test)]
pub fn in_child(body: impl FnOnce() -> bool) -> bool {
    let mut status = -1;
    // SAFETY: the child exits without running other code; only the parent waits for it.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(libc::c_int::from(body()));
        }
        libc::waitpid(child, &raw mut status, 0);
    }
    libc::WEXITSTATUS(status) == 1
}

/// Sleeps while `word` is `value`, for at most `nanos`. Returns true if it was woken, or if the value had already changed.
pub fn futex_wait(word: &AtomicU32, value: u32, nanos: Option<u64>) -> bool {
    let time = nanos.map(|n| libc::timespec {
        tv_sec: (n / 1_000_000_000) as _,
        tv_nsec: (n % 1_000_000_000) as libc::c_long,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is alive. Not a private futex, because other processes map the word too.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, time, clock::OURS) };
    result == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

/// Wakes all threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is alive.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Set in a word of [`Life`] when its thread has died (FUTEX_OWNER_DIED).
pub const DIED: u32 = 0x4000_0000;

/// A word in which the kernel records the death of the calling thread, whatever the cause: set_robust_list(2).
pub struct Life<'a> {
    word: &'a AtomicU32,
    list: Box<RobustList>,
    /// The C library's list for this thread.
    before: (*mut libc::c_void, usize),
}

/// `struct robust_list_head` of `linux/futex.h` and its only entry; the entry's word is `offset` bytes after it.
#[repr(C)]
struct RobustList {
    first: *const *const libc::c_void,
    offset: isize,
    pending: *const libc::c_void,
    entry: *const libc::c_void,
}

impl<'a> Life<'a> {
    /// Writes the thread's ID to `word`. Fails if the kernel does not record deaths.
    pub fn begin(word: &'a AtomicU32) -> io::Result<Self> {
        let mut before = (ptr::null_mut::<libc::c_void>(), 0usize);
        let mut list =
            Box::new(RobustList { first: ptr::null(), offset: 0, pending: ptr::null(), entry: ptr::null() });
        list.first = &raw const list.entry;
        list.entry = (&raw const list.first).cast();
        list.offset = word.as_ptr() as isize - list.first as isize;
        // SAFETY: the list stays alive and in place until `drop` removes it; so does the word.
        unsafe {
            let len = size_of::<[usize; 3]>();
            word.store(thread_id(), SeqCst);
            let got = libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before.0, &raw mut before.1);
            if got != 0 || libc::syscall(libc::SYS_set_robust_list, &raw const *list, len) != 0 {
                word.store(0, SeqCst);
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { word, list, before })
    }
}

impl Drop for Life<'_> {
    fn drop(&mut self) {
        // SAFETY: restores the earlier list; the kernel no longer reads this one.
        unsafe { libc::syscall(libc::SYS_set_robust_list, self.before.0, self.before.1) };
        debug_assert_eq!(self.list.entry, (&raw const self.list.first).cast());
        self.word.store(0, SeqCst);
    }
}

/// The kernel's ID of the calling thread.
pub fn thread_id() -> u32 {
    gettid().as_raw() as u32
}

/// Creates a non-blocking eventfd.
pub fn eventfd() -> io::Result<OwnedFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into())
}

/// Adds one to an eventfd.
pub fn signal(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes, as an eventfd requires. If the counter is full, the eventfd is already readable.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// A range of memory in a process.
pub type Piece = libc::iovec;

/// The type of `process_vm_readv` and `process_vm_writev`.
type CopyCall = unsafe extern "C" fn(
    libc::pid_t,
    *const Piece,
    libc::c_ulong,
    *const Piece,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// # Safety
/// `local` refers to memory of this process that `call` may read or write.
unsafe fn copy(call: CopyCall, pid: u32, local: &[Piece], remote: &[Piece]) -> io::Result<usize> {
    let (here, there) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    // SAFETY: guaranteed by the caller; the kernel checks the remote side.
    let copied = unsafe { call(pid as libc::pid_t, local.as_ptr(), here, remote.as_ptr(), there, 0) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Copies from `remote` of process `pid` to `local`, and returns the number of bytes.
/// # Safety
/// `local` refers to writable memory of this process.
pub unsafe fn read_process(pid: u32, local: &[Piece], remote: &[Piece]) -> io::Result<usize> {
    // SAFETY: guaranteed by the caller.
    unsafe { copy(libc::process_vm_readv, pid, local, remote) }
}

/// Copies from `local` to `remote` of process `pid`, and returns the number of bytes.
/// # Safety
/// `local` refers to readable memory of this process.
pub unsafe fn write_process(pid: u32, local: &[Piece], remote: &[Piece]) -> io::Result<usize> {
    // SAFETY: guaranteed by the caller.
    unsafe { copy(libc::process_vm_writev, pid, local, remote) }
}

/// Permits any process of this user to access this process's memory on hosts with the Yama security module.
pub fn allow_copies() {
    // SAFETY: changes a kernel attribute of this process; fails without Yama.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Faults in the pages of a range, for writing if `write`. The errno tells what is wrong with the range.
/// # Safety
/// There are no further requirements on the range; the call only faults pages in.
pub unsafe fn populate(at: *mut u8, len: usize, write: bool) -> io::Result<()> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: faulting pages in changes no contents.
        match done(unsafe { libc::madvise(at.cast(), len, advice) }) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
            other => return other,
        }
    }
}

/// From `linux/membarrier.h`: a memory barrier in every running thread of all registered processes.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Makes [`barrier_everywhere`], called in this or another process, reach the threads of this one. Returns false if the kernel has no such
/// call.
///
/// In a program with several threads, the kernel makes the caller wait for all processors, which takes long on a busy machine, so this is
/// called as early as possible.
pub fn accept_barriers() -> bool {
    // SAFETY: only changes how the kernel schedules this process; a kernel that does not support the call refuses it.
    unsafe {
        libc::syscall(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 && sync::barrier::register()
    }
}

/// Executes a full memory barrier in every thread of every program that has a node open. Returns false if the kernel
/// has no such call.
pub fn barrier_everywhere() -> bool {
    fence(SeqCst);
    // SAFETY: accesses no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) == 0 }
}

/// Yields the processor, bypassing the replacement of sched_yield in programs with virtual clocks.
pub fn yield_now() {
    // SAFETY: takes no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Sleeps for `nanos`, without the kernel's default timer slack of 50 us.
pub fn nap(nanos: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanos.into() };
    // The slack is an attribute of the thread, and is restored afterwards.
    let slack = get_timerslack().unwrap_or(0);
    let _ = set_timerslack(1);
    // SAFETY: the structure lives across the call. An interrupted sleep counts as done.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
    if slack > 0 {
        let _ = set_timerslack(slack as libc::c_ulong);
    }
}

/// Number of involuntary context switches of the calling thread.
pub fn involuntary_switches() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| usage.involuntary_context_switches().unsigned_abs())
}

/// Reads eight bytes at `at` of process `pid`, if permitted.
pub fn peek(pid: u32, at: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    let (local, remote) = (&mut [IoSliceMut::new(&mut word)], RemoteIoVec { base: at as usize, len: 8 });
    match process_vm_readv(Pid::from_raw(pid as libc::pid_t), local, &[remote])? {
        8 => Ok(u64::from_ne_bytes(word)),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}
