//! Interrupts as file descriptors.

use super::Transport;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use sync::Kept;

/// The event signalled by one MSI-X vector.
#[derive(Debug)]
pub struct Interrupt {
    fd: Kept,
}

impl Interrupt {
    /// Wraps an eventfd: readable when the vector has fired since the last read.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: Kept::new(fd)? })
    }

    /// Creates an eventfd that is not connected yet.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn new() -> io::Result<Self> {
        // SAFETY: a new descriptor without another owner.
        let fd = unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Self::of(fd)
    }

    /// Waits until the vector fires or `timeout` elapses (`None`: forever). Returns true if it fired.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        wait(self.as_fd(), timeout)
    }

    /// Clears the event. Never blocks, regardless of the descriptor's blocking mode.
    pub fn clear(&self) -> io::Result<bool> {
        if !self.wait(Some(Duration::ZERO))? {
            return Ok(false);
        }
        let mut count = 0u64;
        // SAFETY: eight bytes, the size of an eventfd counter.
        let got = unsafe { libc::read(self.fd.get()?.as_raw_fd(), (&raw mut count).cast(), 8) };
        Ok(got == 8)
    }
}

/// The descriptor that an opener sleeps on: its own interrupt, and one with a descriptor that other openers may share.
#[derive(Debug)]
pub struct Bell {
    own: Interrupt,
    common: Option<(Arc<Interrupt>, Kept)>,
}

impl Bell {
    /// Combines `own` with `common`, if that is a separate one. The latter's descriptor is never read, so every opener
    /// notices each of its signals, independently of the others.
    pub fn new(own: Interrupt, common: Option<Arc<Interrupt>>) -> io::Result<Self> {
        let Some(common) = common else { return Ok(Self { own, common: None }) };
        // SAFETY: a new descriptor without another owner.
        let both = unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        for (fd, how) in [(own.as_fd(), libc::EPOLLIN), (common.as_fd(), libc::EPOLLIN | libc::EPOLLET)] {
            let mut wanted = libc::epoll_event { events: how as u32, u64: 0 };
            // SAFETY: two open descriptors, and an event that lives across the call.
            let added = unsafe {
                libc::epoll_ctl(both.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut wanted)
            };
            if added != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { own, common: Some((common, Kept::new(both)?)) })
    }

    /// Readable when either has fired since the last [`clear`](Self::clear).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.common.as_ref().map_or(self.own.as_fd(), |(_, both)| both.unchecked())
    }

    /// Waits until either fires or `timeout` elapses (`None`: forever). Returns true if one fired.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        wait(self.fd(), timeout)
    }

    /// Returns the result of `look`. If that is `None`, runs a device in this process, then requests an interrupt with
    /// `arm`, so that any event after the last look makes the descriptor readable.
    pub fn take<T>(
        &self,
        transport: &dyn Transport,
        mut look: impl FnMut() -> Option<T>,
        arm: impl FnOnce(),
    ) -> Option<T> {
        if let Some(found) = look() {
            return Some(found);
        }
        transport.idle();
        if let Some(found) = look() {
            return Some(found);
        }
        // Clear before arming, so that no signal of a later event is lost.
        if let Err(error) = self.clear() {
            tracing::warn!(%error, "the interrupt's descriptor cannot be read");
        }
        arm();
        look()
    }

    /// Fires the opener's own interrupt, to wake a waiting thread of this process.
    pub fn ring(&self) -> io::Result<()> {
        let one = 1u64;
        // SAFETY: eight bytes, the size of an eventfd counter.
        let put = unsafe { libc::write(self.own.fd.get()?.as_raw_fd(), (&raw const one).cast(), 8) };
        match put {
            8 => Ok(()),
            _ => match io::Error::last_os_error() {
                // A full counter has already fired.
                e if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
                e => Err(e),
            },
        }
    }

    /// Clears the events. Never blocks.
    pub fn clear(&self) -> io::Result<()> {
        self.own.clear()?;
        if let Some((_, both)) = &self.common {
            let mut fired = [libc::epoll_event { events: 0, u64: 0 }; 2];
            // SAFETY: room for two events; the descriptor is open.
            let got = unsafe { libc::epoll_wait(both.get()?.as_raw_fd(), fired.as_mut_ptr(), 2, 0) };
            if got < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

/// Waits until `fd` is readable or `timeout` elapses (`None`: forever). Returns true if it is readable. A signal ends
/// the wait.
fn wait(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let millis = timeout.map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that lives across the call.
    match unsafe { libc::poll(&mut poll, 1, millis) } {
        -1 => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
            e => Err(e),
        },
        ready => Ok(ready > 0),
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.unchecked()
    }
}
