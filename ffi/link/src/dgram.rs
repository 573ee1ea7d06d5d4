//! Raw frames on a unix datagram socket, one per datagram.

use super::{
    bearer::{Bearer, not_now},
    sockets::{self, SocketFile},
};
use devmodel::region::MAX_FRAME;
use node::Frames;
use std::{
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixDatagram,
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Interval between attempts to find the peer.
const RETRY: Duration = Duration::from_millis(50);

/// A datagram socket and its peer.
pub struct Dgram {
    socket: UnixDatagram,
    peer: PathBuf,
    state: Mutex<State>,
    _file: SocketFile,
}

#[derive(Default)]
struct State {
    connected: bool,
    tried: Option<Instant>,
}

impl Dgram {
    /// Binds `local`; the peer may appear later.
    pub fn new(local: &Path, peer: &Path) -> io::Result<Self> {
        let file = SocketFile::claim(local)?;
        let socket = UnixDatagram::bind(local)?;
        socket.set_nonblocking(true)?;
        sockets::enlarge(socket.as_raw_fd());
        Ok(Self { socket, peer: peer.into(), state: Mutex::default(), _file: file })
    }

    /// Connects to the peer, if it exists. A connected socket reports when its peer has room.
    fn connect(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.connected {
            return Ok(());
        }
        if state.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        state.tried = Some(Instant::now());
        self.socket.connect(&self.peer)?;
        state.connected = true;
        Ok(())
    }
}

impl Bearer for Dgram {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.connect()?;
        match self.socket.send(frame) {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Err(not_now()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(e),
            Err(e) => {
                // The peer is gone; another may take its place.
                if e.raw_os_error() != Some(libc::EMSGSIZE) {
                    *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::default();
                }
                Err(e)
            }
        }
    }

    fn receive(&self, frames: &mut Frames) -> io::Result<()> {
        frames.read(MAX_FRAME + 1, |frame| self.socket.recv(frame))
    }

    fn incoming(&self) -> Vec<RawFd> {
        vec![self.socket.as_raw_fd()]
    }

    fn outgoing(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }
}
