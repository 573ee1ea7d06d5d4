//! MSI-X vectors as eventfds, connected one by one while the function runs.

use super::sys;
use crate::transport::Interrupt;
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{Mutex, PoisonError},
};

/// Number of vectors set up in advance on kernels that cannot add vectors to a running function (before Linux 6.5, and
/// with many IOMMUs after): as many as an opener may ask for.
const IN_ADVANCE: u32 = 64;

/// The vectors of a function.
pub struct Vectors {
    count: u32,
    can_grow: bool,
    /// Vectors that the kernel has set up, 0 for none yet.
    ready: Mutex<u32>,
}

impl Vectors {
    /// Queries the kernel.
    pub fn of(device: &File) -> io::Result<Self> {
        let (count, can_grow) = sys::msix(sys::fd(device))?;
        Ok(Self { count, can_grow, ready: Mutex::new(0) })
    }

    /// Connects `vector` to a new eventfd, which replaces a previous one.
    pub fn connect(&self, device: &File, vector: u16) -> io::Result<Interrupt> {
        let vector = u32::from(vector);
        if vector >= self.count {
            let why = format!("vector {vector} was asked for, the function has {}", self.count);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let interrupt = Interrupt::new()?;
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if *ready == 0 && !self.can_grow {
            *ready = self.prepare(device, self.count.min(IN_ADVANCE))?;
        }
        if vector >= *ready && !self.can_grow {
            let why = format!("the kernel set up {ready} vectors, which cannot become more");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        sys::set_msix(sys::fd(device), vector, &[interrupt.as_fd().as_raw_fd()])?;
        *ready = (*ready).max(vector + 1);
        Ok(interrupt)
    }

    /// Sets up as many vectors as the machine has, at most `most`, without connecting them.
    fn prepare(&self, device: &File, most: u32) -> io::Result<u32> {
        let mut wanted = most;
        loop {
            let none: Vec<RawFd> = vec![-1; wanted as usize];
            match sys::set_msix(sys::fd(device), 0, &none) {
                Ok(()) => return Ok(wanted),
                Err(error) if wanted == 1 => return Err(error),
                Err(_) => wanted /= 2,
            }
        }
    }

    /// Number of vectors.
    pub fn count(&self) -> u32 {
        self.count
    }
}
