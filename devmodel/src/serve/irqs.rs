//! Interrupts of a served function: the client's eventfds, for the vectors of MSI-X and for the device's own failure.
#![allow(unsafe_code)]

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::*},
    },
};

/// Vectors of a function.
pub const VECTORS: usize = crate::state::MSIX_VECTORS;

/// The eventfds of a function's vectors.
#[derive(Default)]
pub struct Irqs {
    /// Locked while one is signalled: once closed, its number may be somebody else's.
    fds: RwLock<Vec<Option<OwnedFd>>>,
    /// Tells that the device failed.
    failure: RwLock<Option<OwnedFd>>,
    /// Vectors, a bit each, whose interrupts are lost on purpose.
    lost: AtomicU64,
}

/// Whether `fd` is an eventfd. Writing to anything else could wait, or do harm.
fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|l| l == Path::new("anon_inode:[eventfd]"))
}

fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Refuses what is no eventfd; a counter that is full must not hold us up.
fn admit(fd: &OwnedFd) -> io::Result<()> {
    if !is_eventfd(fd) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the descriptor is open.
    let done = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn signal(fd: &OwnedFd) {
    let fd = fd.as_raw_fd();
    // Its client may have changed it back.
    if is_nonblocking(fd) {
        let one = 1u64;
        // SAFETY: eight bytes, as an eventfd wants them. A full counter is as readable as can be.
        unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    }
}

impl Irqs {
    /// Gives a vector an eventfd, or takes it away. The vector is below [`VECTORS`].
    pub fn set(&self, vector: u16, fd: Option<OwnedFd>) -> io::Result<()> {
        fd.as_ref().map_or(Ok(()), admit)?;
        let mut fds = self.fds.write().unwrap_or_else(PoisonError::into_inner);
        if fds.is_empty() {
            fds.resize_with(VECTORS, || None);
        }
        let place = fds.get_mut(usize::from(vector));
        *place.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? = fd;
        Ok(())
    }

    /// Vectors that have an eventfd, a bit each.
    pub fn connected(&self) -> u64 {
        let fds = self.fds.read().unwrap_or_else(PoisonError::into_inner);
        fds.iter().enumerate().filter(|(_, fd)| fd.is_some()).fold(0, |bits, (v, _)| bits | 1 << v)
    }

    /// Closes the vectors' eventfds.
    pub fn clear(&self) {
        self.fds.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Takes the eventfd that tells of the device's failure, in place of the one before.
    pub fn set_failure(&self, fd: Option<OwnedFd>) -> io::Result<()> {
        fd.as_ref().map_or(Ok(()), admit)?;
        *self.failure.write().unwrap_or_else(PoisonError::into_inner) = fd;
        Ok(())
    }

    /// Tells the client that the device failed.
    pub fn fail(&self) {
        if let Some(fd) = &*self.failure.read().unwrap_or_else(PoisonError::into_inner) {
            signal(fd);
        }
    }

    /// Loses the interrupts of these vectors, a bit each, from now on.
    pub fn lose(&self, vectors: u64) {
        self.lost.store(vectors, Relaxed);
    }

    /// Raises the interrupt of `vector`, if it is connected.
    pub fn raise(&self, vector: u16) {
        if self.lost.load(Relaxed) >> (vector % 64) & 1 != 0 {
            return;
        }
        let fds = self.fds.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(fd)) = fds.get(usize::from(vector)) {
            signal(fd);
        }
    }
}
