//! Frames on a unix stream socket, each preceded by its length.

use super::{
    bearer::{Bearer, not_now},
    sockets::{self, SocketFile},
};
use devmodel::region::MAX_FRAME;
use node::Frames;
use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Interval between attempts to reach the peer.
const RETRY: Duration = Duration::from_millis(50);
/// Size of a frame's length field in bytes.
const LENGTH: usize = 4;

/// A stream to one peer at a time.
pub struct Stream {
    listener: Option<UnixListener>,
    path: PathBuf,
    state: Mutex<State>,
    _file: Option<SocketFile>,
}

#[derive(Default)]
struct State {
    stream: Option<UnixStream>,
    tried: Option<Instant>,
    /// The part of a frame that could not be sent yet.
    unsent: Vec<u8>,
    /// Received bytes that are not a whole frame yet.
    partial: Vec<u8>,
}

impl Stream {
    /// Listens at `path`, or connects to it once there is a listener.
    pub fn new(path: &Path, listen: bool) -> io::Result<Self> {
        let mut made = Self { listener: None, path: path.into(), state: Mutex::default(), _file: None };
        if listen {
            made._file = Some(SocketFile::claim(path)?);
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            made.listener = Some(listener);
        }
        Ok(made)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, connected if possible.
    fn connected<'s>(&self, state: &'s mut State) -> io::Result<&'s UnixStream> {
        if state.stream.is_none() {
            let stream = match &self.listener {
                Some(listener) => listener.accept()?.0,
                None if state.tried.is_some_and(|tried| tried.elapsed() < RETRY) => {
                    return Err(not_now());
                }
                None => {
                    state.tried = Some(Instant::now());
                    sockets::connect_now(&self.path)?
                }
            };
            stream.set_nonblocking(true)?;
            sockets::enlarge(stream.as_raw_fd());
            *state = State { stream: Some(stream), ..State::default() };
        }
        state.stream.as_ref().ok_or_else(not_now)
    }
}

impl State {
    /// Sends the rest of a frame.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let Some(stream) = &mut self.stream else { return Err(not_now()) };
            match stream.write(&self.unsent) {
                Ok(0) => return self.lost(io::ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(e),
                Err(e) => return self.lost(e),
            }
        }
        Ok(())
    }

    /// Resets the state after the peer is gone.
    fn lost<T>(&mut self, why: io::Error) -> io::Result<T> {
        *self = Self::default();
        Err(why)
    }

    /// Takes the oldest whole frame received.
    fn whole(&mut self, frames: &mut Frames) -> io::Result<bool> {
        let Some(len) = self.partial.first_chunk::<LENGTH>() else { return Ok(false) };
        let len = u32::from_be_bytes(*len) as usize;
        if len > 1 << 16 {
            let why = format!("expected a frame of {MAX_FRAME} bytes at most, found {len} on the stream");
            return self.lost(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let Some(bytes) = self.partial.get(LENGTH..LENGTH + len) else { return Ok(false) };
        frames.push(&[bytes]);
        self.partial.drain(..LENGTH + len);
        Ok(true)
    }
}

impl Bearer for Stream {
    fn send(&self, frame: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        self.connected(&mut state)?;
        state.flush()?;
        state.unsent.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        state.unsent.extend_from_slice(frame);
        match state.flush() {
            // The rest is sent before the next frame.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn receive(&self, frames: &mut Frames) -> io::Result<()> {
        let mut state = self.state();
        self.connected(&mut state)?;
        // Sends the rest of the last frame now, because there may be no next one.
        let _ = state.flush();
        let mut bytes = [0; 16 << 10];
        loop {
            if state.whole(frames)? {
                return Ok(());
            }
            let Some(stream) = &mut state.stream else { return Err(not_now()) };
            match stream.read(&mut bytes) {
                Ok(0) => return state.lost(not_now()),
                Ok(got) => state.partial.extend_from_slice(&bytes[..got]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(e),
                Err(e) => return state.lost(e),
            }
        }
    }

    fn incoming(&self) -> Vec<RawFd> {
        let state = self.state();
        match (&state.stream, &self.listener) {
            (Some(stream), _) => vec![stream.as_raw_fd()],
            (None, Some(listener)) => vec![listener.as_raw_fd()],
            (None, None) => Vec::new(),
        }
    }

    fn outgoing(&self) -> Option<RawFd> {
        self.state().stream.as_ref().map(|stream| stream.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Scratch;

    #[test]
    fn the_rest_of_a_frame_that_was_cut_short_goes_without_another() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(&scratch.0).unwrap();
        let path = scratch.0.join("link");
        let there = Stream::new(&path, true).unwrap();
        let here = Stream::new(&path, false).unwrap();
        let mut sent = 0u32;
        // Until the socket accepts only a part.
        while here.state().unsent.is_empty() {
            let mut frame = [7; 9001];
            frame[..4].copy_from_slice(&sent.to_be_bytes());
            here.send(&frame).unwrap();
            sent += 1;
            assert!(sent < 100_000, "the socket takes everything");
        }
        let mut frames = Frames::default();
        let mut got = 0u32;
        let end = Instant::now() + Duration::from_secs(10);
        while got < sent && Instant::now() < end {
            match there.receive(&mut frames) {
                Ok(()) => {
                    let frame = frames.iter().next().unwrap();
                    assert_eq!((frame.len(), &frame[..4]), (9001, &got.to_be_bytes()[..]));
                    frames.clear();
                    got += 1;
                }
                // The sender is listening, and sends nothing.
                Err(_) => assert!(here.receive(&mut Frames::default()).is_err()),
            }
        }
        assert_eq!(got, sent);
    }
}
