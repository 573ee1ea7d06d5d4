//! Interrupts as file descriptors.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

/// The event one MSI-X vector signals.
#[derive(Debug)]
pub struct Interrupt {
    /// An eventfd: readable when the vector has fired since the last read.
    pub fd: OwnedFd,
}

impl Interrupt {
    /// An eventfd that nothing signals yet.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a new descriptor, nobody else's.
        let fd = unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
                -1 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Ok(Self { fd })
    }

    /// Waits until the vector fires or `timeout` passes (`None`: forever). True if it fired.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let millis = timeout.map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives across the call.
        match unsafe { libc::poll(&mut poll, 1, millis) } {
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e => Err(e),
            },
            ready => Ok(ready > 0),
        }
    }

    /// Clears the event. Never blocks, whether or not the descriptor is in non-blocking mode.
    pub fn clear(&self) -> io::Result<bool> {
        if !self.wait(Some(Duration::ZERO))? {
            return Ok(false);
        }
        let mut count = 0u64;
        // SAFETY: eight bytes, the size of an eventfd's counter.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
        Ok(got == 8)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
