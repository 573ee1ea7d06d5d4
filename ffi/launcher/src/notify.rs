//! Seccomp user notification: system calls of other processes that the kernel suspends until they are answered (seccomp_unotify(2)).
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`, of Linux 5.19: only fatal signals interrupt a call after it was received. Without it any
/// signal can interrupt the call, and its answer may come too late.
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;

/// The descriptor on which the kernel reports calls, closed on exec.
pub struct Listener(OwnedFd);

/// A reported call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    /// The kernel's ID of the notification.
    pub id: u64,
    /// The calling thread's ID in this PID namespace; 0 if it is hidden by another one.
    pub thread: u32,
    /// The system call.
    pub call: libc::c_long,
    /// Its arguments.
    pub args: [u64; 6],
    /// The thread's instruction pointer.
    pub instruction: u64,
}

fn last<T>() -> io::Result<T> {
    Err(io::Error::last_os_error())
}

impl Listener {
    /// Installs `filter` for the calling thread and everything it starts.
    pub fn install(filter: &[libc::sock_filter]) -> io::Result<Self> {
        let len = u16::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
        let install = |flags: libc::c_ulong| {
            // SAFETY: the kernel copies `len` instructions from `filter`, which outlives the call, and writes nothing; the returned
            // descriptor is new.
            unsafe {
                let mode = libc::SECCOMP_SET_MODE_FILTER;
                let fd = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program);
                if fd < 0 { last() } else { Ok(Self(OwnedFd::from_raw_fd(fd as libc::c_int))) }
            }
        };
        match install(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                install(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)
            }
            done => done,
        }
    }

    /// Wraps a listener that another process sent.
    pub fn from_descriptor(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Receives the next call. Blocks if there is none.
    ///
    /// # Errors
    /// ENOENT: the calling thread was interrupted meanwhile.
    pub fn receive(&self) -> io::Result<Notice> {
        // The kernel requires it to be zeroed.
        let mut notice = MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the kernel fills the structure, which consists of integers.
        let notice = unsafe {
            if libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, notice.as_mut_ptr()) < 0 {
                return last();
            }
            notice.assume_init()
        };
        Ok(Notice {
            id: notice.id,
            thread: notice.pid,
            call: notice.data.nr.into(),
            args: notice.data.args,
            instruction: notice.data.instruction_pointer,
        })
    }

    /// True if the thread is still waiting. If so, data read through its thread ID before this check belongs to it.
    pub fn waits(&self, notice: &Notice) -> bool {
        let id = notice.id;
        // SAFETY: the number is only read.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
    }

    /// Sends an answer. Returns false if the call was interrupted and accepts none.
    fn send(&self, mut answer: libc::seccomp_notif_resp) -> bool {
        // SAFETY: the structure is only read.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) == 0 }
    }

    /// Makes the call return a value or fail with an errno. Returns false if it was interrupted.
    pub fn answer(&self, notice: &Notice, result: Result<i64, i32>) -> bool {
        let (val, error) = result.map_or_else(|errno| (0, -errno), |value| (value, 0));
        self.send(libc::seccomp_notif_resp { id: notice.id, val, error, flags: 0 })
    }

    /// Makes the kernel execute the call.
    pub fn pass(&self, notice: &Notice) {
        self.send(libc::seccomp_notif_resp { id: notice.id, val: 0, error: 0, flags: CONTINUE });
    }

    /// Installs `file` as the caller's descriptor `number`. The call continues to wait.
    pub fn place(&self, notice: &Notice, file: BorrowedFd<'_>, number: u32, cloexec: bool) -> io::Result<()> {
        let give = libc::seccomp_notif_addfd {
            id: notice.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: file.as_raw_fd() as u32,
            newfd: number,
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the structure is only read.
        let got =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const give) };
        if got < 0 { last() } else { Ok(()) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
