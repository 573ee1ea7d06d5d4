//! Transports that carry frames out of the node and into it.

use super::sockets;
use node::Frames;
use std::{
    io,
    net::IpAddr,
    os::fd::RawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// Maximum time that a full peer delays sending before its frames are dropped.
const PATIENCE: Duration = Duration::from_millis(20);

/// A transport that carries frames out of the node and into it. Its calls do not block, except that [`flush`](Self::flush) may have
/// [`Patience`].
pub trait Bearer: Send + Sync {
    /// Sends a frame, from Ethernet header to ICRC without the FCS or from LRH to VCRC, at the next [`flush`](Self::flush) at the latest.
    /// Fails with [`io::ErrorKind::WouldBlock`] if there is no room now.
    fn send(&self, frame: &[u8]) -> io::Result<()>;
    /// Sends the gathered frames. Returns the number of those that are lost.
    fn flush(&self) -> u64 {
        0
    }
    /// Appends the next frames received, one or several. Fails with [`io::ErrorKind::WouldBlock`] if there are none.
    fn receive(&self, frames: &mut Frames) -> io::Result<()>;
    /// Descriptors that become readable when a frame arrives.
    fn incoming(&self) -> Vec<RawFd>;
    /// The descriptor that becomes writable when there is room.
    fn outgoing(&self) -> Option<RawFd>;
    /// The MAC of `ip` for the function with the address `own`, for bearers that route by IP address alone.
    fn neighbour(&self, own: IpAddr, ip: IpAddr) -> Option<[u8; 6]> {
        let _ = (own, ip);
        None
    }
}

/// The error if there is no frame, or no room.
pub fn not_now() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// Waits for a full peer. After a peer has been full for a while, it is not waited for again until it accepts a frame.
#[derive(Default)]
pub struct Patience {
    stalled: AtomicBool,
}

impl Patience {
    /// Calls `send`, and again if there was no room, once `fd` is writable.
    pub fn send(&self, fd: Option<RawFd>, mut send: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let is_full = |result: &io::Result<()>| {
            result.as_ref().err().is_some_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        };
        let mut result = send();
        if is_full(&result) && !self.stalled.load(Relaxed) && fd.is_some() {
            sockets::wait(&[], fd, Some(PATIENCE));
            result = send();
        }
        self.stalled.store(is_full(&result), Relaxed);
        result
    }
}
