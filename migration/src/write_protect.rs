//! Write protection by userfaultfd(2), for the moment of a copy.
//!
//! A thread that writes to protected memory waits, in the middle of its store or of its system call, and then writes to
//! what is mapped there by then. The calls take three structures of a few words, so they are made here
//! (`linux/userfaultfd.h`).

use std::{
    ffi::{c_int, c_ulong},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

const USER_MODE_ONLY: c_int = 1;
const IOC_NEW: c_ulong = 0xaa00;
const IOC_API: c_ulong = 0xc018_aa3f;
const IOC_REGISTER: c_ulong = 0xc020_aa00;
const IOC_UNREGISTER: c_ulong = 0x8010_aa01;
const IOC_WAKE: c_ulong = 0x8010_aa02;
const IOC_WRITEPROTECT: c_ulong = 0xc018_aa06;
const API: u64 = 0xaa;
/// Writes to protected pages are distinguished from missing pages, and memory in files can be protected too.
const FEATURES: u64 = 1 << 0 | 1 << 12;
const REGISTER_WRITES: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;
/// How often, a millisecond apart, the threads of the program are counted.
const PATIENCE: u32 = 5;
/// How the names of our own threads begin.
const OURS: &str = "ironverbs";

/// A userfaultfd with the features needed, for one range.
pub struct Userfault(OwnedFd);

/// While it lives, threads that write to the range wait.
pub struct Protected {
    file: OwnedFd,
    start: usize,
    len: usize,
}

impl Userfault {
    /// Fails if the kernel has no userfaultfd, does not give it to this user, or gives it only for writes that are no
    /// system calls while the program has several threads.
    pub fn new() -> io::Result<Self> {
        Self::of(open()?)
    }

    fn of(file: OwnedFd) -> io::Result<Self> {
        call(&file, IOC_API, &mut [API, FEATURES, 0])?;
        Ok(Self(file))
    }

    /// Protects `len` bytes from `start` (whole pages). The calling thread must neither write there nor allocate until
    /// the protection is dropped.
    pub fn protect(self, start: usize, len: usize) -> io::Result<Protected> {
        call(&self.0, IOC_REGISTER, &mut [start as u64, len as u64, REGISTER_WRITES, 0])?;
        let protected = Protected { file: self.0, start, len };
        call(&protected.file, IOC_WRITEPROTECT, &mut [start as u64, len as u64, PROTECT])?;
        Ok(protected)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let range = [self.start as u64, self.len as u64];
        // Closing the file does not suffice, since a child forked meanwhile has a copy of it. The calls fail if another
        // mapping has taken the place of the one that was registered; then there is nothing to end.
        let _ = call(&self.file, IOC_UNREGISTER, &mut range.clone());
        let _ = call(&self.file, IOC_WAKE, &mut range.clone());
    }
}

fn call<const N: usize>(file: &OwnedFd, what: c_ulong, words: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: the structure is as long as the number of the call says.
    match unsafe { libc::ioctl(file.as_raw_fd(), what as _, words.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor, which nothing else owns.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn open() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: takes no memory.
    let made = |more: c_int| owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | more) } as c_int);
    let refused = match made(0) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => error,
        other => return other,
    };
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    if let Ok(device) = device {
        // SAFETY: takes flags, no memory.
        if let Ok(file) = owned(unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW as _, flags) }) {
            return Ok(file);
        }
    }
    // The kernel would fail system calls of other threads that write there.
    if is_alone()? { made(USER_MODE_ONLY) } else { Err(refused) }
}

/// Whether the program has a single thread, not counting ours.
fn is_alone() -> io::Result<bool> {
    // A thread of ours that has just begun may not have named itself yet.
    for _ in 0..PATIENCE {
        if program_threads()? <= 1 {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Threads of the process, not counting ours that serve the device.
fn program_threads() -> io::Result<usize> {
    let named_as_ours = |path: std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with(OURS))
    };
    let threads = std::fs::read_dir("/proc/self/task")?.flatten();
    Ok(threads.filter(|thread| !named_as_ours(thread.path())).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use std::{
        sync::atomic::{AtomicU64, Ordering::SeqCst},
        time::Instant,
    };

    /// Checks that a write waits until the protection ends, and is made then.
    fn check_that_writes_wait(protect: impl FnOnce(usize) -> Protected) {
        let memory = Pages::private(4096).unwrap();
        // SAFETY: a page of ours, of words.
        let word = unsafe { &*memory.ptr().as_ptr().cast::<AtomicU64>() };
        word.store(1, SeqCst);
        let protected = protect(memory.ptr().as_ptr() as usize);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| word.store(2, SeqCst));
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(50) {
                assert_eq!(word.load(SeqCst), 1, "written while it was protected");
            }
            assert!(!writer.is_finished());
            drop(protected);
        });
        assert_eq!(word.load(SeqCst), 2);
    }

    #[test]
    fn writers_wait() {
        check_that_writes_wait(|start| Userfault::new().unwrap().protect(start, 4096).unwrap());
    }

    #[test]
    fn writers_wait_for_users_without_privileges_too() {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: takes no memory.
        let file = owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as c_int).unwrap();
        check_that_writes_wait(|start| Userfault::of(file).unwrap().protect(start, 4096).unwrap());
    }

    #[test]
    fn threads_of_the_program_are_counted_without_ours() {
        testkit::alone!();
        let before = program_threads().unwrap();
        std::thread::scope(|scope| {
            let (begun, wait_begun) = std::sync::mpsc::channel();
            // A thread names itself when it begins.
            let mut begin = |name: &str| {
                let (end, wait) = std::sync::mpsc::channel::<()>();
                let begun = begun.clone();
                let body = move || {
                    begun.send(()).unwrap();
                    let _ = wait.recv();
                };
                std::thread::Builder::new().name(name.into()).spawn_scoped(scope, body).unwrap();
                wait_begun.recv().unwrap();
                end
            };
            let ends = ["ironverbs-x", "ironverbs", "program"].map(&mut begin);
            assert_eq!(program_threads().unwrap(), before + 1);
            drop(ends);
        });
    }
}
