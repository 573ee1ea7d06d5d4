//! Two joined nodes of one host: frames that leave one arrive at the other.

use super::{
    bearer::{Bearer, not_now},
    port::Port,
};
use node::Frames;
use std::{
    collections::HashMap,
    io,
    os::fd::RawFd,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread::{self, ThreadId},
};

/// One end of the join.
#[derive(Default)]
pub struct Joined {
    /// The other node's port, and the index of the link there that leads back to this end.
    other: OnceLock<(Weak<Port>, usize)>,
    /// The frames that each thread has in transit. If another thread carried them, they could be overtaken by later ones.
    gathered: Mutex<HashMap<ThreadId, Frames>>,
}

impl Joined {
    fn gathered(&self) -> MutexGuard<'_, HashMap<ThreadId, Frames>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects this end to link `link` of `port`.
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
        self.gathered().entry(thread::current().id()).or_default().push(&[frame]);
        Ok(())
    }

    fn flush(&self) -> u64 {
        // The lock is released before they arrive, because the other port may send something back.
        let frames = self.gathered().remove(&thread::current().id());
        if let (Some(frames), Some((port, link))) = (frames, self.other.get()) {
            if let Some(port) = port.upgrade() {
                port.arrive(*link, &frames, false);
            }
        }
        0
    }

    fn receive(&self, _: &mut Frames) -> io::Result<()> {
        Err(not_now())
    }

    fn incoming(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn outgoing(&self) -> Option<RawFd> {
        None
    }
}
