//! Interrupts of a served function: the client's eventfds for the MSI-X vectors and for a device failure, or, for a client
//! without eventfds, messages that the function's thread sends.
#![allow(unsafe_code)]

use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, AtomicU64, Ordering::*},
    },
};

/// Vectors of a function.
pub const VECTORS: usize = crate::state::MSIX_VECTORS;

/// Delivery of a function's vectors to its client.
enum Way {
    /// Through its eventfds.
    Eventfds(Vec<Option<OwnedFd>>),
    /// As messages sent by the function's thread.
    Messages(Arc<Messages>),
}

/// The interrupts of a function.
pub struct Irqs {
    /// Locked while an eventfd is signalled, because once closed its number may be reused for another file.
    way: RwLock<Way>,
    /// Signals a device failure.
    failure: RwLock<Option<OwnedFd>>,
    /// Bitmap of vectors with interrupts that are dropped on purpose.
    lost: AtomicU64,
}

impl Default for Irqs {
    fn default() -> Self {
        let way = RwLock::new(Way::Eventfds(Vec::new()));
        Self { way, failure: RwLock::default(), lost: AtomicU64::new(0) }
    }
}

/// Interrupts waiting for the function's thread to send them. Any thread can raise one without blocking.
pub struct Messages {
    /// Bitmap of pending vectors.
    due: AtomicU64,
    /// Message data of each vector, from the MSI-X table.
    data: [AtomicU32; VECTORS],
    /// Becomes readable once a vector is pending.
    woken: UnixStream,
    wake: UnixStream,
}

impl Messages {
    /// Creates it with no vector pending.
    pub fn new() -> io::Result<Arc<Self>> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let data = std::array::from_fn(|_| AtomicU32::new(0));
        Ok(Arc::new(Self { due: AtomicU64::new(0), data, woken, wake }))
    }

    fn raise(&self, vector: u16, data: u32) {
        let Some(place) = self.data.get(usize::from(vector)) else { return };
        place.store(data, Relaxed);
        if self.due.fetch_or(1 << vector, AcqRel) == 0 {
            // A full socket wakes the reader as well.
            let _ = (&self.wake).write(&[0]);
        }
    }

    /// A descriptor that is readable while vectors are pending.
    pub fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Takes the bitmap of pending vectors.
    pub fn take(&self) -> u64 {
        // Drain before the swap, so that the wake-up of a vector raised after it is not lost.
        while matches!((&self.woken).read(&mut [0; 64]), Ok(1..)) {}
        self.due.swap(0, AcqRel)
    }

    /// Message data of `vector`, which is below [`VECTORS`].
    pub fn data(&self, vector: usize) -> u32 {
        self.data[vector].load(Relaxed)
    }
}

/// True if `fd` is an eventfd. A write to any other file could block or do harm.
fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|l| l == Path::new("anon_inode:[eventfd]"))
}

fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Rejects files other than eventfds, and makes the eventfd nonblocking so that a full counter cannot block us.
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
    // The client may have cleared O_NONBLOCK since.
    if is_nonblocking(fd) {
        let one = 1u64;
        // SAFETY: writes the eight bytes that an eventfd expects. If the counter is full, the eventfd is readable already.
        unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    }
}

impl Irqs {
    /// Sets or removes the eventfd of a vector, which is below [`VECTORS`].
    pub fn set(&self, vector: u16, fd: Option<OwnedFd>) -> io::Result<()> {
        fd.as_ref().map_or(Ok(()), admit)?;
        let mut way = self.way.write().unwrap_or_else(PoisonError::into_inner);
        let Way::Eventfds(fds) = &mut *way else { return Err(io::Error::from_raw_os_error(libc::EINVAL)) };
        if fds.is_empty() {
            fds.resize_with(VECTORS, || None);
        }
        let place = fds.get_mut(usize::from(vector));
        *place.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? = fd;
        Ok(())
    }

    /// Delivers interrupts through `messages` until [`clear`](Self::clear).
    pub fn leave_to(&self, messages: Arc<Messages>) {
        *self.way.write().unwrap_or_else(PoisonError::into_inner) = Way::Messages(messages);
    }

    /// Bitmap of the vectors that have an eventfd.
    pub fn connected(&self) -> u64 {
        match &*self.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Eventfds(fds) => {
                fds.iter().enumerate().filter(|(_, fd)| fd.is_some()).fold(0, |bits, (v, _)| bits | 1 << v)
            }
            Way::Messages(_) => 0,
        }
    }

    /// Closes the vectors' eventfds and stops sending messages.
    pub fn clear(&self) {
        *self.way.write().unwrap_or_else(PoisonError::into_inner) = Way::Eventfds(Vec::new());
    }

    /// Replaces the eventfd that signals a device failure.
    pub fn set_failure(&self, fd: Option<OwnedFd>) -> io::Result<()> {
        fd.as_ref().map_or(Ok(()), admit)?;
        *self.failure.write().unwrap_or_else(PoisonError::into_inner) = fd;
        Ok(())
    }

    /// Signals a device failure to the client.
    pub fn fail(&self) {
        if let Some(fd) = &*self.failure.read().unwrap_or_else(PoisonError::into_inner) {
            signal(fd);
        }
    }

    /// Drops the interrupts of these vectors (a bitmap) from now on.
    pub fn lose(&self, vectors: u64) {
        self.lost.store(vectors, Relaxed);
    }

    /// Raises the interrupt of `vector`, if it is connected. `data` is the message data, for clients that receive messages.
    pub fn raise(&self, vector: u16, data: u32) {
        if self.lost.load(Relaxed) >> (vector % 64) & 1 != 0 {
            return;
        }
        match &*self.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Eventfds(fds) => {
                if let Some(Some(fd)) = fds.get(usize::from(vector)) {
                    signal(fd);
                }
            }
            Way::Messages(messages) => messages.raise(vector, data),
        }
    }
}
