//! Raw frames of a TAP device, which connects this host's kernel to the wire.
#![allow(unsafe_code)]

use super::bearer::{Bearer, not_now};
use devmodel::region::MAX_FRAME;
use node::Frames;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::OpenOptionsExt,
    },
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// A TAP device that this process is attached to.
pub struct Tap {
    device: File,
    /// Set once the device was deleted: it then reports an error to every poll.
    deleted: AtomicBool,
}

impl Tap {
    /// Attaches to the TAP device `name` of this network namespace. A missing device is created, and removed with this process.
    pub fn new(name: &str) -> io::Result<Self> {
        // SAFETY: a plain structure of integers.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The kernel requires a zero after the name.
        if name.len() >= request.ifr_name.len() {
            let why = format!("expected a name of at most {} bytes", request.ifr_name.len() - 1);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        let device =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: the structure lives across the call.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw const request) };
        if done == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { device, deleted: AtomicBool::new(false) })
    }

    /// Records that the device was deleted, if `result` says so: it would wake the poller forever.
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|e| {
            if e.raw_os_error() == Some(libc::EBADFD) {
                self.deleted.store(true, Relaxed);
            }
        })
    }
}

impl Bearer for Tap {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        match self.note((&self.device).write(frame)) {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Err(not_now()),
            Err(e) => Err(e),
        }
    }

    fn receive(&self, frames: &mut Frames) -> io::Result<()> {
        frames.read(MAX_FRAME + 1, |frame| self.note((&self.device).read(frame)))
    }

    fn incoming(&self) -> Vec<RawFd> {
        if self.deleted.load(Relaxed) { Vec::new() } else { vec![self.device.as_raw_fd()] }
    }

    fn outgoing(&self) -> Option<RawFd> {
        None
    }
}
