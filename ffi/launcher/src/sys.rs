//! System calls that the standard library lacks, with safe wrappers that return `io::Result`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Effective user ID.
pub fn euid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Effective group ID.
pub fn egid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::getegid() }
}

/// Moves the calling (single-threaded) process into new namespaces of the kinds in `flags`.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: only changes kernel attributes of this process.
    done(unsafe { libc::unshare(flags) })
}

/// Joins the namespace that `fd` refers to, which must be of the kind in `flags`.
pub fn setns(fd: &OwnedFd, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open during the call.
    done(unsafe { libc::setns(fd.as_raw_fd(), flags) })
}

/// mount(2); `None` where the call ignores the argument.
pub fn mount(
    source: Option<&CStr>,
    target: &CStr,
    fstype: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> io::Result<()> {
    let text = |s: Option<&CStr>| s.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a C string that outlives the call.
    done(unsafe {
        libc::mount(text(source), target.as_ptr(), text(fstype), flags, text(data).cast::<libc::c_void>())
    })
}

/// Exchanges two files on one mount atomically: at every instant both names exist.
pub fn exchange(one: &CStr, other: &CStr) -> io::Result<()> {
    let (at, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: the paths are C strings that outlive the call; no other memory is passed.
    let result = unsafe { libc::syscall(libc::SYS_renameat2, at, one.as_ptr(), at, other.as_ptr(), flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Unmounts the file system mounted at `at` itself, without following links. Its open files stay open.
///
/// # Errors
/// EINVAL: nothing is mounted there.
pub fn unmount(at: &CStr) -> io::Result<()> {
    // SAFETY: the path is a C string that outlives the call.
    done(unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) })
}

/// Makes all mounts of the namespace slaves of the mounts they were copied from, so that new mounts do not propagate.
pub fn make_mounts_slaves() -> io::Result<()> {
    let slaves = || mount(None, c".", None, libc::MS_REC | libc::MS_SLAVE, None);
    let (root, here) = (open_path(c"/")?, open_path(c".")?);
    enter_dir(&root)?;
    match slaves() {
        // The root directory is a chroot, not a mount. The mounts begin above it, at the root of the namespace.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            climb_out_of_chroot()?;
            let done = slaves();
            enter_dir(&root)?;
            chroot(c".")?;
            done?;
        }
        other => other?,
    }
    enter_dir(&here)
}

/// Changes to the root of the mount namespace. With the root below the working directory, `..` is not limited.
fn climb_out_of_chroot() -> io::Result<()> {
    chroot(c"proc")?;
    for _ in 0..libc::PATH_MAX / 2 {
        // SAFETY: the path is a C string.
        done(unsafe { libc::chdir(c"..".as_ptr()) })?;
    }
    Ok(())
}

fn chroot(path: &CStr) -> io::Result<()> {
    // SAFETY: the path is a C string that outlives the call.
    done(unsafe { libc::chroot(path.as_ptr()) })
}

fn enter_dir(dir: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open during the call.
    done(unsafe { libc::fchdir(dir.as_raw_fd()) })
}

/// Opens `path` as a location only (O_PATH).
pub fn open_path(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path is a C string; a returned descriptor is new.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Clones the mount at `path`, and returns its descriptor. Settings of the clone and the original are independent.
pub fn clone_mount(path: &CStr) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint;
    // SAFETY: the path is a C string; a returned descriptor is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as RawFd)) }
    }
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
    let namespace = |of: &str| File::open(format!("/proc/{of}/ns/mnt")).map(OwnedFd::from);
    let whose = thread.to_string();
    let there = (namespace(&whose)?, open_path(&path(&format!("/proc/{whose}/root"))?)?);
    let here = (namespace("self")?, open_path(c"/")?);
    let go = |(namespace, root): &(OwnedFd, OwnedFd)| {
        setns(namespace, libc::CLONE_NEWNS)?;
        enter_dir(root)?;
        chroot(c".")
    };
    let looked = go(&there).and_then(|()| look());
    go(&here)?;
    looked
}

fn path(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Waits for the exclusive advisory lock of `fd`.
pub fn lock(fd: RawFd) -> io::Result<()> {
    loop {
        // SAFETY: no memory is passed.
        match done(unsafe { libc::flock(fd, libc::LOCK_EX) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
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

/// Sets no_new_privs for this process and everything it starts: set-uid files no longer gain privileges.
pub fn no_new_privs() -> io::Result<()> {
    // SAFETY: no memory is passed.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// True if no_new_privs is set.
pub fn has_no_new_privs() -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
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
    unsafe {
        match libc::fork() {
            -1 => Answer::Unknown,
            0 => {
                let code = match ask() {
                    Ok(()) => 0,
                    Err(e) => e.raw_os_error().map_or(255, |n| n.clamp(1, 254)),
                };
                libc::_exit(code)
            }
            child => {
                let mut status = 0;
                while libc::waitpid(child, &mut status, 0) < 0 {
                    if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                        return Answer::Unknown;
                    }
                }
                match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
                    Some(0) => Answer::Yes,
                    Some(n) if n < 255 => Answer::No(n),
                    _ => Answer::Unknown,
                }
            }
        }
    }
}

/// Reads eight bytes of the parent's memory as another process of the user would.
pub fn read_parent(word: &u64) -> io::Result<()> {
    let mut copy = 0u64;
    let size = size_of::<u64>();
    let local = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: size };
    let remote = libc::iovec { iov_base: ptr::from_ref(word).cast_mut().cast(), iov_len: size };
    // SAFETY: the local vector is `copy`, eight bytes; the remote one is only read, in the parent.
    let got =
        unsafe { libc::process_vm_readv(libc::getppid(), &raw const local, 1, &raw const remote, 1, 0) };
    match got {
        8 if copy == *word => Ok(()),
        n if n < 0 => Err(io::Error::last_os_error()),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}
