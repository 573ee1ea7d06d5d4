//! Two nodes of one host, joined: what leaves one arrives at the other.

use super::{
    bearer::{Bearer, not_now},
    port::Port,
};
use std::{
    io,
    os::fd::RawFd,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

/// One end of the join.
#[derive(Default)]
pub struct Joined {
    /// The port of the other node, and which of its links we are.
    other: OnceLock<(Weak<Port>, usize)>,
    /// The frames on the way there.
    gathered: Mutex<Vec<Vec<u8>>>,
}

impl Joined {
    fn gathered(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ties this end to link `link` of `port`.
    pub fn tie(&self, port: Weak<Port>, link: usize) {
        let _ = self.other.set((port, link));
    }
}

impl Bearer for std::sync::Arc<Joined> {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        let (port, _) = self.other.get().ok_or_else(not_now)?;
        if port.strong_count() == 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.gathered().push(frame.to_vec());
        Ok(())
    }

    fn flush(&self) {
        let frames = std::mem::take(&mut *self.gathered());
        if frames.is_empty() {
            return;
        }
        if let Some((port, link)) = self.other.get() {
            if let Some(port) = port.upgrade() {
                port.arrive(*link, frames);
            }
        }
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
