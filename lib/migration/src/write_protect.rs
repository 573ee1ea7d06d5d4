//! Keeps other threads of the program from writing to memory during a copy: through write protection by userfaultfd(2),
//! or because there are none.
//!
//! A thread that writes to protected memory waits, in the middle of its store or system call, and then writes to the
//! new mapping. The calls take three structures of a few words, which are declared here (`linux/userfaultfd.h`).
//! Container engines deny the call to all their containers.

use std::{
    ffi::{c_int, c_ulong},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    time::Duration,
};

const IOC_NEW: c_ulong = 0xaa00;
const IOC_API: c_ulong = 0xc018_aa3f;
const IOC_REGISTER: c_ulong = 0xc020_aa00;
const IOC_UNREGISTER: c_ulong = 0x8010_aa01;
const IOC_WAKE: c_ulong = 0x8010_aa02;
const IOC_WRITEPROTECT: c_ulong = 0xc018_aa06;
const API: u64 = 0xaa;
/// Feature bits: writes to protected pages are distinguished from missing pages, and file-backed memory can be
/// protected too.
const FEATURES: u64 = 1 << 0 | 1 << 12;
const REGISTER_WRITES: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;
/// Number of times, a millisecond apart, that the threads of the program are counted.
const PATIENCE: u32 = 5;
/// Name prefix of our own threads.
const OURS: &str = "ironverbs";

/// Keeps other threads of the program from writing to a range: either such threads wait, or there are none.
pub struct Hold(Option<OwnedFd>);

/// A range that is write-protected until this is dropped.
pub struct Protected {
    file: OwnedFd,
    start: usize,
    len: usize,
}

impl Hold {
    /// Fails if the program has several threads, and the kernel either has no userfaultfd or does not let this user
    /// handle faults of system calls.
    pub fn new() -> io::Result<Self> {
        match Self::of_several() {
            Err(refused) if !is_alone()? => Err(refused),
            Err(_) => Ok(Self(None)),
            hold => hold,
        }
    }

    /// Fails if threads cannot be made to wait.
    pub fn of_several() -> io::Result<Self> {
        open().and_then(Self::of)
    }

    fn of(file: OwnedFd) -> io::Result<Self> {
        call(&file, IOC_API, &mut [API, FEATURES, 0])?;
        Ok(Self(Some(file)))
    }

    /// Protects `len` bytes at `start` (whole pages). Until the result is dropped, the calling thread must not write
    /// there, allocate, or start a thread.
    pub fn begin(self, start: usize, len: usize) -> io::Result<Option<Protected>> {
        let Some(file) = self.0 else { return Ok(None) };
        call(&file, IOC_REGISTER, &mut [start as u64, len as u64, REGISTER_WRITES, 0])?;
        let protected = Protected { file, start, len };
        call(&protected.file, IOC_WRITEPROTECT, &mut [start as u64, len as u64, PROTECT])?;
        Ok(Some(protected))
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let range = [self.start as u64, self.len as u64];
        // Closing the file is not sufficient, since a child forked in the meantime has a copy of it. The calls fail if
        // the registered mapping has been replaced by another; then there is nothing to end.
        let _ = call(&self.file, IOC_UNREGISTER, &mut range.clone());
        let _ = call(&self.file, IOC_WAKE, &mut range.clone());
    }
}

fn call<const N: usize>(file: &OwnedFd, what: c_ulong, words: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: the structure has the length encoded in the ioctl number.
    match unsafe { libc::ioctl(file.as_raw_fd(), what as _, words.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor without another owner.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Opens a userfaultfd that also blocks writes by system calls.
fn open() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: passes no memory.
    let refused = match owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as c_int) {
        Err(error) => error,
        made => return made,
    };
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    // SAFETY: passes flags, no memory.
    let made =
        device.and_then(|device| owned(unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW as _, flags) }));
    made.map_err(|_| refused)
}

/// True if the program has a single thread, not counting ours.
fn is_alone() -> io::Result<bool> {
    // A thread of ours that has just started may not have set its name yet.
    for _ in 0..PATIENCE {
        if program_threads()? <= 1 {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Number of threads of the process, except ours that serve the device. New threads inherit the name of their process,
/// so if the process itself has a name like ours, all its threads are counted.
fn program_threads() -> io::Result<usize> {
    let is_ours = |comm: &Path| std::fs::read_to_string(comm).is_ok_and(|name| name.starts_with(OURS));
    let tell_apart = !is_ours(Path::new("/proc/self/comm"));
    let threads = std::fs::read_dir("/proc/self/task")?.flatten();
    Ok(threads.filter(|thread| !(tell_apart && is_ours(&thread.path().join("comm")))).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use std::{
        sync::atomic::{AtomicU64, Ordering::SeqCst},
        time::Instant,
    };

    /// Checks that a write waits until the protection ends, and is then executed.
    fn check_that_writes_wait(hold: Hold) {
        let memory = Pages::private(4096).unwrap();
        // SAFETY: a page of ours, accessed as words.
        let word = unsafe { &*memory.ptr().as_ptr().cast::<AtomicU64>() };
        word.store(1, SeqCst);
        let protected = hold.begin(memory.ptr().as_ptr() as usize, 4096).unwrap().expect("a userfaultfd");
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
        check_that_writes_wait(Hold::new().unwrap());
    }

    /// Runs `body` in a child of fork, which has a single thread, as a user without permission for userfaultfd.
    fn as_nobody(body: impl FnOnce() -> bool) -> bool {
        const NOBODY: libc::uid_t = 65534;
        let mut status = -1;
        // SAFETY: the child only runs the `body` of the tests below, and exits; the parent only waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(20);
                let done = (libc::getuid() != 0 || libc::setuid(NOBODY) == 0) && body();
                libc::_exit(c_int::from(done));
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_single_thread_needs_no_userfaultfd_and_several_do() {
        testkit::alone!();
        if as_nobody(|| open().is_ok()) {
            println!("skipped: every user has userfaultfd here (vm.unprivileged_userfaultfd)");
            return;
        }
        let holds = || Hold::new().is_ok_and(|hold| hold.begin(0, 4096).is_ok_and(|held| held.is_none()));
        assert!(as_nobody(holds), "expected a single thread to hold memory without one");
        let beside = || {
            let (end, wait) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || wait.recv());
            let refused = Hold::new().is_err();
            drop(end);
            refused && other.join().is_ok()
        };
        assert!(as_nobody(beside), "expected a program of two threads to be refused");
    }

    #[test]
    fn threads_of_the_program_are_counted_without_ours() {
        testkit::alone!();
        // The tests' own name begins like those of our threads.
        std::fs::write("/proc/self/comm", "program").unwrap();
        let before = program_threads().unwrap();
        std::thread::scope(|scope| {
            let (begun, wait_begun) = std::sync::mpsc::channel();
            // A thread sets its name when it starts.
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
