//! System calls of the supervisor.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv, recvmsg, send,
    sendmsg, socketpair,
};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, chdir, fork, setsid};

/// Runs `life` in a process that is not a child of this one, in its own session. The calling process must have one thread.
///
/// # Errors
/// It cannot be started.
pub fn fork_apart(life: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the caller has one thread, so the children may do whatever the caller could; they exit with `_exit` and do not return into
    // the caller's stack.
    unsafe {
        match fork()? {
            ForkResult::Child => {
                let _ = setsid();
                if let Ok(ForkResult::Child) = fork() {
                    let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(life)) {
                        Ok(Ok(())) => 0,
                        _ => 1,
                    };
                    libc::_exit(code);
                }
                libc::_exit(0)
            }
            ForkResult::Parent { child } => loop {
                match waitpid(child, None) {
                    Err(Errno::EINTR) => {}
                    other => return Ok(other.map(drop)?),
                }
            },
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
        let high = |fd: RawFd| Errno::result(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 16.max(number(N))));
        let null = high(null.into_raw_fd())?;
        let mut copies = [0; N];
        for (copy, fd) in copies.iter_mut().zip(kept) {
            *copy = high(fd.into_raw_fd())?;
        }
        for standard in 0..3 {
            Errno::result(libc::dup2(null, standard))?;
        }
        for (place, copy) in copies.into_iter().enumerate() {
            Errno::result(libc::dup3(copy, number(place), libc::O_CLOEXEC))?;
        }
        Errno::result(libc::syscall(libc::SYS_close_range, number(N), u32::MAX, 0))?;
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
        let _ = chdir("/");
        let _ = nix::sys::prctl::set_name(c"ironverbs-super");
        Ok(std::array::from_fn(|place| OwnedFd::from_raw_fd(number(place))))
    }
}

/// Sends a descriptor to the other end of `by`.
pub fn send_descriptor(by: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    let (byte, fds) = ([IoSlice::new(&[1])], [fd.as_raw_fd()]);
    let rights = [ControlMessage::ScmRights(&fds)];
    Ok(sendmsg::<()>(by.as_raw_fd(), &byte, &rights, MsgFlags::MSG_NOSIGNAL, None).map(drop)?)
}

/// Waits for a descriptor from the other end.
///
/// # Errors
/// The other end was closed instead.
pub fn receive_descriptor(by: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (mut byte, mut control) = ([0], nix::cmsg_space!(RawFd));
    let mut data = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<()>(by.as_raw_fd(), &mut data, Some(&mut control), flags);
    match got.and_then(|got| Ok((got.bytes, got.cmsgs()?.next()))) {
        Ok((1, Some(ControlMessageOwned::ScmRights(fds)))) if fds.len() == 1 => {
            // SAFETY: the kernel has just made the descriptor for this process.
            Ok(unsafe { OwnedFd::from_raw_fd(fds[0]) })
        }
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
    }
}

/// A pair of packet sockets: the local end is used without blocking, the other one is non-blocking only if `nonblocking`.
pub fn packet_pair(nonblocking: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, its) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    if nonblocking {
        fcntl(&its, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok((ours, its))
}

/// Receives the next packet, truncated to `most` bytes. `None` if there is none yet.
///
/// # Errors
/// The other end is closed.
pub fn receive_packet(from: BorrowedFd<'_>, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0u8; most];
    match recv(from.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
        Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        Ok(len) => {
            bytes.truncate(len);
            Ok(Some(bytes))
        }
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Copies the next packet without removing it: at most `most` bytes of it, and its length. `None` if there is none.
pub fn peek_packet(from: BorrowedFd<'_>, most: usize) -> Option<(Vec<u8>, usize)> {
    let mut bytes = vec![0u8; most];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
    let len = recv(from.as_raw_fd(), &mut bytes, flags).ok()?;
    bytes.truncate(len);
    Some((bytes, len))
}

/// Sends a packet. Returns false if the socket has no room for it.
pub fn send_packet(to: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    send(to.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok()
}

/// Readiness of a file that was polled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready {
    /// Data is available.
    pub readable: bool,
    /// The other end is closed. For a filter: no program is under it any more.
    pub over: bool,
}

/// Waits until any of `files` is ready, or until a time. Returns the readiness of each, in order: none is ready after a timeout or a
/// signal.
pub fn wait(files: &[BorrowedFd<'_>], until: Option<Instant>) -> io::Result<Vec<Ready>> {
    const OVER: PollFlags = PollFlags::POLLHUP.union(PollFlags::POLLERR).union(PollFlags::POLLNVAL);
    let mut all: Vec<_> = files.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // Rounded up; otherwise the last millisecond would be spent polling.
    let timeout = left.map(|left| left.as_micros().div_ceil(1000).min(60_000) as u16);
    match poll(&mut all, timeout) {
        Err(Errno::EINTR) => return Ok(vec![Ready::default(); all.len()]),
        other => other?,
    };
    let events = all.iter().map(|file| file.revents().unwrap_or(PollFlags::empty()));
    Ok(events
        .map(|events| Ready { readable: events.contains(PollFlags::POLLIN), over: events.intersects(OVER) })
        .collect())
}

/// Reports when a file in one of a few directories is opened or created.
pub struct Visits(Inotify);

impl Visits {
    /// Watches `dirs`.
    pub fn of<'a>(mut dirs: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let visits = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        dirs.try_for_each(|dir| inotify.add_watch(dir, visits).map(drop))?;
        Ok(Self(inotify))
    }

    /// Discards the visits so far.
    pub fn clear(&self) {
        while self.0.read_events().is_ok() {}
    }
}

impl AsFd for Visits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
