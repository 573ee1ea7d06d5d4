//! Transports that carry frames out of the node and into it.

use std::{io, net::IpAddr, os::fd::RawFd};

/// A transport that carries frames out of the node and into it. Its calls do not block.
pub trait Bearer: Send + Sync {
    /// Sends a frame, from Ethernet header to ICRC without the FCS, at the next [`flush`](Self::flush) at the latest. Fails with
    /// [`io::ErrorKind::WouldBlock`] if there is no room now.
    fn send(&self, frame: &[u8]) -> io::Result<()>;
    /// Sends the gathered frames.
    fn flush(&self) {}
    /// Receives a frame. Fails with [`io::ErrorKind::WouldBlock`] if there is none.
    fn receive(&self, frame: &mut Vec<u8>) -> io::Result<()>;
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
