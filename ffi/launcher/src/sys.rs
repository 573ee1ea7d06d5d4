//! System calls that the standard library lacks, with safe wrappers that return `io::Result`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, chdir, chroot, fchdir, fork, getppid};
use nix::{NixPath, errno::Errno};

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts a tmpfs over `target`.
pub fn mount_tmpfs(target: &Path) -> io::Result<()> {
    let (name, kind, mode) = (Some("ironverbs"), Some("tmpfs"), Some("mode=755"));
    Ok(nix::mount::mount(name, target, kind, MsFlags::MS_NOSUID, mode)?)
}

/// Changes or adds a mount at `target` by `flags`, of `source` if they need one.
pub fn mount(source: Option<&Path>, target: &Path, flags: MsFlags) -> io::Result<()> {
    Ok(nix::mount::mount(source, target, None::<&Path>, flags, None::<&Path>)?)
}

/// Exchanges two files on one mount atomically: at every instant both names exist.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let (at, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    let result = one.with_nix_path(|one| {
        // SAFETY: the paths are C strings that outlive the call; no other memory is passed.
        other.with_nix_path(|other| unsafe {
            libc::syscall(libc::SYS_renameat2, at, one.as_ptr(), at, other.as_ptr(), flags)
        })
    })??;
    done(result as libc::c_int)
}

/// Makes all mounts of the namespace slaves of the mounts they were copied from, so that new mounts do not propagate.
pub fn make_mounts_slaves() -> io::Result<()> {
    let slaves = || mount(None, Path::new("."), MsFlags::MS_REC | MsFlags::MS_SLAVE);
    let (root, here) = (open_path("/")?, open_path(".")?);
    fchdir(&root)?;
    match slaves() {
        // The root directory is a chroot, not a mount. The mounts begin above it, at the root of the namespace.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            climb_out_of_chroot()?;
            let done = slaves();
            fchdir(&root)?;
            chroot(".")?;
            done?;
        }
        other => other?,
    }
    Ok(fchdir(&here)?)
}

/// Changes to the root of the mount namespace. With the root below the working directory, `..` is not limited.
fn climb_out_of_chroot() -> io::Result<()> {
    chroot("proc")?;
    for _ in 0..libc::PATH_MAX / 2 {
        chdir("..")?;
    }
    Ok(())
}

/// Opens `path` as a location only (O_PATH).
pub fn open_path(path: &(impl NixPath + ?Sized)) -> io::Result<OwnedFd> {
    Ok(open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Clones the mount at `path`, and returns its descriptor. Settings of the clone and the original are independent.
pub fn clone_mount(path: &str) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint;
    // SAFETY: the path is a C string; a returned descriptor is new.
    path.with_nix_path(|path| unsafe {
        let fd = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as RawFd)) }
    })?
}

/// Makes a cloned mount writable, even if the original is not.
pub fn make_writable(clone: &OwnedFd) -> io::Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    /// `struct mount_attr`: attributes to set, attributes to clear, propagation, user namespace.
    const CHANGE: [u64; 4] = [0, MOUNT_ATTR_RDONLY, 0, 0];
    // SAFETY: the path and the structure outlive the call and are only read; the size is that of the structure.
    let result = unsafe {
        let (path, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
        libc::syscall(
            libc::SYS_mount_setattr,
            clone.as_raw_fd(),
            path,
            flags,
            CHANGE.as_ptr(),
            size_of_val(&CHANGE),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `look` in the mount namespace and root directory of `thread`. The calling process has one thread.
///
/// # Errors
/// The thread has ended, its namespace is not accessible, or `look` failed.
pub fn within<T>(thread: u32, look: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let namespace = |of: &str| File::open(format!("/proc/{of}/ns/mnt"));
    let whose = thread.to_string();
    let there = (namespace(&whose)?, open_path(format!("/proc/{whose}/root").as_str())?);
    let here = (namespace("self")?, open_path("/")?);
    let go = |(namespace, root): &(File, OwnedFd)| -> io::Result<()> {
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        fchdir(root)?;
        Ok(chroot(".")?)
    };
    let looked = go(&there).and_then(|()| look());
    go(&here)?;
    looked
}

/// Waits for the exclusive advisory lock of `file`.
pub fn lock(mut file: File) -> io::Result<Flock<File>> {
    loop {
        match Flock::lock(file, FlockArg::LockExclusive) {
            Err((again, Errno::EINTR)) => file = again,
            other => return Ok(other.map_err(|(_, e)| e)?),
        }
    }
}

/// A process's limit of descriptors. It gets no numbers at or above the soft limit, and may raise the soft limit up to the hard limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The effective limit.
    pub soft: u64,
    /// The maximum of the soft limit.
    pub hard: u64,
}

/// The limit of the process that a thread belongs to; `None` is the caller's.
pub fn descriptor_limit(thread: Option<u32>) -> io::Result<Limit> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let thread = thread.unwrap_or(0) as libc::pid_t;
    // SAFETY: the kernel fills the structure, which consists of integers, and reads nothing.
    done(unsafe { libc::prlimit64(thread, libc::RLIMIT_NOFILE, ptr::null(), &raw mut limit) })?;
    Ok(Limit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

/// Sets the limit of the process that a thread belongs to; `None` is the caller's.
pub fn limit_descriptors(thread: Option<u32>, limit: Limit) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: limit.soft, rlim_max: limit.hard };
    let thread = thread.unwrap_or(0) as libc::pid_t;
    // SAFETY: the structure is only read and outlives the call.
    done(unsafe { libc::prlimit64(thread, libc::RLIMIT_NOFILE, &raw const limit, ptr::null_mut()) })
}

/// Raises the calling process's soft limit to its hard limit.
pub fn raise_own_limit() -> io::Result<()> {
    let limit = descriptor_limit(None)?;
    limit_descriptors(None, Limit { soft: limit.hard, ..limit })
}

/// The descriptors of the calling process that stay open across exec.
pub fn inherited() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        // SAFETY: no memory is passed.
        let stays = |number: &RawFd| unsafe {
            let flags = libc::fcntl(*number, libc::F_GETFD);
            flags >= 0 && flags & libc::FD_CLOEXEC == 0
        };
        numbers.extend(number.filter(stays).map(|number| number as u32));
    }
    Ok(numbers)
}

/// Permits every process of the same user to copy to and from this one's memory, where Yama would refuse siblings.
pub fn allow_any_tracer() -> io::Result<()> {
    // SAFETY: no memory is passed.
    done(unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) })
}

/// Installs a seccomp filter for the calling thread and everything it starts.
pub fn seccomp(filter: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call, and writes nothing.
    done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) })
}

/// The result of a child process, from its exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It succeeded.
    Yes,
    /// It was refused with this errno.
    No(i32),
    /// The child could not be started, or died.
    Unknown,
}

/// Runs `ask` in a forked child, so that its side effects end with the child. `ask` may only make system calls: in a program with other
/// threads, the child must not wait for a lock that one of them held.
pub fn in_child(ask: impl FnOnce() -> io::Result<()>) -> Answer {
    // SAFETY: the child only runs `ask` and exits with `_exit`, without returning into the caller's stack.
    match unsafe { fork() } {
        Err(_) => Answer::Unknown,
        Ok(ForkResult::Child) => {
            let code = match ask() {
                Ok(()) => 0,
                Err(e) => e.raw_os_error().map_or(255, |n| n.clamp(1, 254)),
            };
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        Ok(ForkResult::Parent { child }) => loop {
            match waitpid(child, None) {
                Err(Errno::EINTR) => {}
                Ok(WaitStatus::Exited(_, 0)) => return Answer::Yes,
                Ok(WaitStatus::Exited(_, n)) if n < 255 => return Answer::No(n),
                _ => return Answer::Unknown,
            }
        },
    }
}

/// Reads eight bytes of the parent's memory as another process of the user would.
pub fn read_parent(word: &u64) -> io::Result<()> {
    let mut copy = [0; size_of::<u64>()];
    let remote = RemoteIoVec { base: ptr::from_ref(word) as usize, len: copy.len() };
    match process_vm_readv(getppid(), &mut [IoSliceMut::new(&mut copy)], &[remote])? {
        8 if u64::from_ne_bytes(copy) == *word => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}
