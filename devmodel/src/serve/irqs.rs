//! Interrupts of a served function: the client's eventfds, for the vectors of MSI-X and for the device's own failure; or, for
//! a client that has no eventfds, messages that wait for the function's thread.
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

/// How a function's vectors reach its client.
enum Way {
    /// By its eventfds.
    Eventfds(Vec<Option<OwnedFd>>),
    /// As messages of the function's thread.
    Messages(Arc<Messages>),
}

/// The interrupts of a function.
pub struct Irqs {
    /// Locked while an eventfd is signalled: once closed, its number may be somebody else's.
    way: RwLock<Way>,
    /// Tells that the device failed.
    failure: RwLock<Option<OwnedFd>>,
    /// Vectors, a bit each, whose interrupts are lost on purpose.
    lost: AtomicU64,
}

impl Default for Irqs {
    fn default() -> Self {
        let way = RwLock::new(Way::Eventfds(Vec::new()));
        Self { way, failure: RwLock::default(), lost: AtomicU64::new(0) }
    }
}

/// Interrupts that wait for the thread of a function, which sends them on. Any thread raises them, without waiting.
pub struct Messages {
    /// Vectors that are due, a bit each.
    due: AtomicU64,
    /// The data of each vector's message, as the MSI-X table has them.
    data: [AtomicU32; VECTORS],
    /// Has a byte to read once something is due.
    woken: UnixStream,
    wake: UnixStream,
}

impl Messages {
    /// None are due.
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
            // A socket that is full wakes as well.
            let _ = (&self.wake).write(&[0]);
        }
    }

    /// Is readable once vectors are due.
    pub fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Takes the vectors that are due, a bit each.
    pub fn take(&self) -> u64 {
        // First, or what is raised behind the look at the bits would wake nobody.
        while matches!((&self.woken).read(&mut [0; 64]), Ok(1..)) {}
        self.due.swap(0, AcqRel)
    }

    /// The data of the message of `vector`, which is below [`VECTORS`].
    pub fn data(&self, vector: usize) -> u32 {
        self.data[vector].load(Relaxed)
    }
}

/// True if `fd` is an eventfd. Writing to anything else could wait, or do harm.
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
        let mut way = self.way.write().unwrap_or_else(PoisonError::into_inner);
        let Way::Eventfds(fds) = &mut *way else { return Err(io::Error::from_raw_os_error(libc::EINVAL)) };
        if fds.is_empty() {
            fds.resize_with(VECTORS, || None);
        }
        let place = fds.get_mut(usize::from(vector));
        *place.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? = fd;
        Ok(())
    }

    /// Leaves interrupts to `messages` until [`clear`](Self::clear).
    pub fn leave_to(&self, messages: Arc<Messages>) {
        *self.way.write().unwrap_or_else(PoisonError::into_inner) = Way::Messages(messages);
    }

    /// Vectors that have an eventfd, a bit each.
    pub fn connected(&self) -> u64 {
        match &*self.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Eventfds(fds) => {
                fds.iter().enumerate().filter(|(_, fd)| fd.is_some()).fold(0, |bits, (v, _)| bits | 1 << v)
            }
            Way::Messages(_) => 0,
        }
    }

    /// Closes the vectors' eventfds, and sends no messages any more.
    pub fn clear(&self) {
        *self.way.write().unwrap_or_else(PoisonError::into_inner) = Way::Eventfds(Vec::new());
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

    /// Raises the interrupt of `vector`, if it is connected. `data` is what its message says, for a client that takes messages.
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
