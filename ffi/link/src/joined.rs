//! Two nodes of one host, joined: what leaves one arrives at the other.

use super::{
    bearer::{Bearer, not_now},
    port::Port,
};
use std::{
    io,
    os::fd::RawFd,
    sync::{OnceLock, Weak},
};

/// One end of the join.
#[derive(Default)]
pub struct Joined {
    /// The port of the other node, and which of its links we are.
    other: OnceLock<(Weak<Port>, usize)>,
}

impl Joined {
    /// Ties this end to link `link` of `port`.
    pub fn tie(&self, port: Weak<Port>, link: usize) {
        let _ = self.other.set((port, link));
    }
}

impl Bearer for std::sync::Arc<Joined> {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        let (port, link) = self.other.get().ok_or_else(not_now)?;
        let port = port.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        port.arrive(*link, vec![frame.to_vec()]);
        Ok(())
    }

    fn receive(&self, _: &mut Vec<u8>) -> io::Result<()> {
        Err(not_now())
    }

    fn incoming(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn outgoing(&self) -> Option<RawFd> {
        None
    }
}
