//! Carriers of frames out of the node and in.

use std::{io, net::IpAddr, os::fd::RawFd};

/// A carrier of frames out of the node and in. None of its calls waits.
pub trait Bearer: Send + Sync {
    /// Sends a frame, Ethernet to ICRC without check sequence, at the next [`flush`](Self::flush) at the latest.
    /// [`io::ErrorKind::WouldBlock`]: there is no room now.
    fn send(&self, frame: &[u8]) -> io::Result<()>;
    /// Sends what is gathered.
    fn flush(&self) {}
    /// Takes a frame that came. [`io::ErrorKind::WouldBlock`]: none is there.
    fn receive(&self, frame: &mut Vec<u8>) -> io::Result<()>;
    /// Descriptors that become readable when a frame comes.
    fn incoming(&self) -> Vec<RawFd>;
    /// The descriptor that becomes writable when there is room.
    fn outgoing(&self) -> Option<RawFd>;
    /// The MAC of `ip` for the function with the address `own`, where the bearer finds the way by IP address alone.
    fn neighbour(&self, own: IpAddr, ip: IpAddr) -> Option<[u8; 6]> {
        let _ = (own, ip);
        None
    }
}

/// No frame is there, or no room.
pub fn not_now() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}
