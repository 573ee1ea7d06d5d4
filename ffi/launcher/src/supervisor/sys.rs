//! System calls of the supervisor.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Instant;

fn last<T>() -> io::Result<T> {
    Err(io::Error::last_os_error())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { last() } else { Ok(result) }
}

/// Runs `life` in a process that is not a child of this one, in its own session. The calling process must have one thread.
///
/// # Errors
/// It cannot be started.
pub fn fork_apart(life: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the caller has one thread, so the children may do whatever the caller could; they exit with `_exit` and do not return into
    // the caller's stack.
    unsafe {
        match check(libc::fork())? {
            0 => {
                libc::setsid();
                if libc::fork() == 0 {
                    let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(life)) {
                        Ok(Ok(())) => 0,
                        _ => 1,
                    };
                    libc::_exit(code);
                }
                libc::_exit(0)
            }
            child => {
                let mut status = 0;
                while libc::waitpid(child, &raw mut status, 0) < 0 {
                    if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                        return last();
                    }
                }
                Ok(())
            }
        }
    }
}

/// Closes all descriptors except `kept`, opens the standard streams on /dev/null, and resets signals to their defaults.
pub fn keep_only<const N: usize>(kept: [OwnedFd; N]) -> io::Result<[OwnedFd; N]> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    // The numbers after the standard streams.
    let number = |place: usize| 3 + place as RawFd;
    // SAFETY: the first `3 + N` descriptors are replaced by duplicates, which afterwards are owned only by the values created here; all
    // above are closed, and this process never returns to code that assumes to own them.
    unsafe {
        // Duplicates them to numbers above those that are overwritten.
        let high = |fd: RawFd| check(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 16.max(number(N))));
        let null = high(null.into_raw_fd())?;
        let mut copies = [0; N];
        for (copy, fd) in copies.iter_mut().zip(kept) {
            *copy = high(fd.into_raw_fd())?;
        }
        for standard in 0..3 {
            check(libc::dup2(null, standard))?;
        }
        for (place, copy) in copies.into_iter().enumerate() {
            check(libc::dup3(copy, number(place), libc::O_CLOEXEC))?;
        }
        check(libc::syscall(libc::SYS_close_range, number(N), u32::MAX, 0) as libc::c_int)?;
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::chdir(c"/".as_ptr());
        libc::prctl(libc::PR_SET_NAME, c"ironverbs-super".as_ptr());
        Ok(std::array::from_fn(|place| OwnedFd::from_raw_fd(number(place))))
    }
}

/// Buffer for the control message of one descriptor.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Sends a descriptor to the other end of `by`.
pub fn send_descriptor(by: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    let byte = [1u8];
    let data = IoSlice::new(&byte);
    let mut control = Control([0; 32]);
    // SAFETY: a plain structure; the control message fits into `control`; only the byte and the control message are read.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = ptr::from_ref(&data).cast_mut().cast();
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        if libc::sendmsg(by.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) == 1 {
            Ok(())
        } else {
            last()
        }
    }
}

/// Waits for a descriptor from the other end.
///
/// # Errors
/// The other end was closed instead.
pub fn receive_descriptor(by: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut byte = [0u8];
    let data = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 32]);
    // SAFETY: the kernel writes the byte and at most the given length of `control`; a received descriptor is new.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = (&raw const data).cast_mut();
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<Control>() as _;
        let got = libc::recvmsg(by.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if got != 1 || header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}

/// A pair of packet sockets: the local end is used without blocking, the other one is non-blocking only if `nonblocking`.
pub fn packet_pair(nonblocking: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two new descriptors.
    let (ours, its) = unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
        (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]))
    };
    if nonblocking {
        // SAFETY: no memory is passed.
        check(unsafe { libc::fcntl(its.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    }
    Ok((ours, its))
}

/// Receives the next packet, truncated to `most` bytes. `None` if there is none yet.
///
/// # Errors
/// The other end is closed.
pub fn receive_packet(from: BorrowedFd<'_>, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0u8; most];
    // SAFETY: the kernel writes at most `most` bytes.
    let got = unsafe { libc::recv(from.as_raw_fd(), bytes.as_mut_ptr().cast(), most, libc::MSG_DONTWAIT) };
    match usize::try_from(got) {
        Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        Err(_) => match io::Error::last_os_error() {
            e if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            e => Err(e),
        },
    }
}

/// Copies the next packet without removing it: at most `most` bytes of it, and its length. `None` if there is none.
pub fn peek_packet(from: BorrowedFd<'_>, most: usize) -> Option<(Vec<u8>, usize)> {
    let mut bytes = vec![0u8; most];
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most `most` bytes.
    let got = unsafe { libc::recv(from.as_raw_fd(), bytes.as_mut_ptr().cast(), most, flags) };
    let len = usize::try_from(got).ok()?;
    bytes.truncate(len);
    Some((bytes, len))
}

/// Sends a packet. Returns false if the socket has no room for it.
pub fn send_packet(to: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are only read.
    unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) >= 0 }
}

/// The inode, which identifies a file.
pub fn inode(of: BorrowedFd<'_>) -> io::Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure if it returns 0, and it is read only then.
    unsafe {
        check(libc::fstat(of.as_raw_fd(), stat.as_mut_ptr()))?;
        Ok(stat.assume_init().st_ino)
    }
}

/// Readiness of a file that was polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready {
    /// Data is available.
    pub readable: bool,
    /// The other end is closed. For a filter: no program is under it any more.
    pub over: bool,
}

impl Ready {
    fn of(events: libc::c_short) -> Self {
        Self {
            readable: events & libc::POLLIN != 0,
            over: events & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0,
        }
    }
}

/// Waits until any of `files` is ready, or until a time. Returns the readiness of each, in order: none is ready after a timeout or a
/// signal.
pub fn wait(files: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<Ready>> {
    let at = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut all: Vec<_> = files.iter().map(at).collect();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // Rounded up; otherwise the last millisecond would be spent polling.
    let timeout = left.map_or(-1, |left| left.as_micros().div_ceil(1000).min(60_000) as libc::c_int);
    // SAFETY: the given number of structures of integers, which the kernel fills.
    match check(unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, timeout) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(vec![Ready::default(); all.len()]),
        Err(e) => Err(e),
        Ok(_) => Ok(all.iter().map(|file| Ready::of(file.revents)).collect()),
    }
}

/// Reports when a file in one of a few directories is opened or created.
pub struct Visits(OwnedFd);

impl Visits {
    /// Watches `dirs`.
    pub fn of<'a>(dirs: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        const WHAT: u32 = libc::IN_OPEN | libc::IN_MOVED_TO | libc::IN_ONLYDIR;
        // SAFETY: the descriptor is new.
        let fd = unsafe {
            OwnedFd::from_raw_fd(check(libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK))?)
        };
        for dir in dirs {
            let name = CString::new(dir.as_os_str().as_bytes())
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            // SAFETY: the name outlives the call.
            check(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), name.as_ptr(), WHAT) })?;
        }
        Ok(Self(fd))
    }

    /// Discards the visits so far.
    pub fn clear(&self) {
        let mut events = [0u8; 4096];
        // SAFETY: the kernel writes at most the array's length.
        while unsafe { libc::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) } > 0 {}
    }
}

impl AsFd for Visits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
