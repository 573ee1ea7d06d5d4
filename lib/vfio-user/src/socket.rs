//! Messages over a stream socket, with their descriptors, and the listening sockets of servers.

use crate::{
    Command, Error, HEADER_SIZE, Header, Kind, MAX_MESSAGE, Result, sys,
    version::{MAJOR, Version},
};
use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::FileTypeExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use sync::Eager;
use zerocopy::{FromBytes, IntoBytes};

/// Timeout for the other end to continue a message, or to receive one of ours.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of descriptors waiting for their message. A client that sends more violates the protocol.
const WAITING_FDS: usize = 1024;

/// A received message.
#[derive(Debug)]
pub struct Message<'a> {
    /// Its header.
    pub header: Header,
    /// The payload.
    pub payload: &'a [u8],
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// The receiving half.
pub struct Receiver {
    socket: Arc<UnixStream>,
    buf: Vec<u8>,
    /// Start of the unread bytes in `buf`.
    start: usize,
    end: usize,
    /// Number of bytes of the stream before `buf[0]`.
    base: u64,
    /// Descriptors, each with the stream position of the last byte of the read that returned it. A read ends with the
    /// piece of the stream that carried descriptors, so that byte belongs to the same message.
    fds: Vec<(u64, OwnedFd)>,
    patience: Duration,
    /// For waits without a limit, which are those of a server.
    eager: Eager,
}

/// The sending half. Concurrent senders are serialized.
pub struct Sender {
    socket: Arc<UnixStream>,
}

/// Both halves, and the requests of a client.
pub struct Connection {
    /// The receiving half.
    pub receiver: Receiver,
    /// The sending half.
    pub sender: Sender,
    next_id: u16,
}

/// The answer to a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// The payload.
    pub payload: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

impl Receiver {
    /// Sets the timeout for the other end to continue a message.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Receives the next message. Waits for it up to `within`, or forever.
    pub fn receive(&mut self, within: Option<Duration>) -> Result<Message<'_>> {
        let size = self.fill(within)?;
        let from = self.start;
        self.start += size;
        let until = self.base + self.start as u64;
        let mut fds = Vec::new();
        if !self.fds.is_empty() {
            let (taken, rest) = std::mem::take(&mut self.fds).into_iter().partition(|(at, _)| *at < until);
            self.fds = rest;
            let taken: Vec<(u64, OwnedFd)> = taken;
            fds.extend(taken.into_iter().map(|(_, fd)| fd));
        }
        let (header, payload) = split(&self.buf[from..from + size])?;
        Ok(Message { header, payload, fds })
    }

    /// Reads until a whole message is available. Returns its size.
    fn fill(&mut self, within: Option<Duration>) -> Result<usize> {
        let mut begun = Instant::now();
        loop {
            let have = self.end - self.start;
            let mut missing = HEADER_SIZE;
            if have >= HEADER_SIZE {
                let (header, _) = split(&self.buf[self.start..self.end])?;
                let size = header.size as usize;
                if !(HEADER_SIZE..=MAX_MESSAGE).contains(&size) {
                    return Err(Error::Malformed(format!(
                        "a message says it has {size} bytes, expected {HEADER_SIZE} to {MAX_MESSAGE}"
                    )));
                }
                if have >= size {
                    return Ok(size);
                }
                missing = size;
            }
            if self.start > 0 && (have == 0 || self.start + missing > self.buf.len()) {
                self.buf.copy_within(self.start..self.end, 0);
                self.base += self.start as u64;
                (self.start, self.end) = (0, have);
            }
            // Between messages the caller determines the timeout. Within a message, the other end has started and must
            // continue.
            let wait = if have == 0 { within } else { Some(self.patience) };
            let wait = wait.map(|w| w.saturating_sub(begun.elapsed()));
            self.read(wait, have > 0)?;
            if have == 0 {
                begun = Instant::now();
            }
        }
    }

    /// Performs one read.
    fn read(&mut self, wait: Option<Duration>, within_message: bool) -> Result<()> {
        let what = if within_message { "the rest of a message" } else { "a message" };
        let mut fds = Vec::new();
        let begun = Instant::now();
        let room = &mut self.buf[self.end..];
        let mut receive = |dont_wait| sys::receive(self.socket.as_fd(), room, &mut fds, dont_wait);
        let look = || match receive(true) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => None,
            found => Some(found),
        };
        let mut found = if wait.is_none() { self.eager.look(look) } else { None };
        let got = loop {
            match found.take().unwrap_or_else(|| receive(wait.is_some())) {
                Ok(got) => break got,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let wait = wait.unwrap_or(self.patience);
                    let left = wait.saturating_sub(begun.elapsed());
                    let silent = || Error::Silent(wait.as_millis(), what);
                    let ready = sys::readable(self.socket.as_fd(), left);
                    let ready = ready.map_err(|e| Error::System("wait for a message", e))?;
                    if !ready || left.is_zero() {
                        return Err(silent());
                    }
                }
                Err(e) if e.kind() == ErrorKind::ConnectionReset => break 0,
                Err(e) => return Err(Error::System("receive a message", e)),
            }
        };
        self.eager.end();
        match got {
            0 if within_message => {
                return Err(Error::Malformed("the connection was closed in the middle of a message".into()));
            }
            0 => return Err(Error::Closed),
            _ => self.end += got,
        }
        let last = self.base + self.end as u64 - 1;
        self.fds.extend(fds.into_iter().map(|fd| (last, fd)));
        if self.fds.len() > WAITING_FDS {
            return Err(Error::Malformed(format!("{} descriptors for one message", self.fds.len())));
        }
        Ok(())
    }
}

fn split(bytes: &[u8]) -> Result<(Header, &[u8])> {
    crate::message::read(bytes)
}

impl Sender {
    /// Sends a message with `header` followed by `parts`, with descriptors.
    pub fn send(&self, header: &Header, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut all: Vec<&[u8]> = Vec::with_capacity(parts.len() + 1);
        all.push(header.as_bytes());
        all.extend_from_slice(parts);
        let mut fds = fds;
        let mut rest = all.as_mut_slice();
        while !rest.is_empty() {
            match sys::send(self.socket.as_fd(), rest, fds, false) {
                Ok(sent) => {
                    fds = &[];
                    advance(&mut rest, sent);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return Err(Error::Silent(PATIENCE.as_millis(), "a message to be taken"));
                }
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Err(Error::Closed);
                }
                Err(e) => return Err(Error::System("send a message", e)),
            }
        }
        Ok(())
    }

    /// Replies to `request`, if it wants a reply.
    pub fn reply(&self, request: &Header, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> Result<()> {
        if request.no_reply() {
            return Ok(());
        }
        self.send(&request.reply(parts.iter().map(|p| p.len()).sum()), parts, fds)
    }

    /// Refuses `request`, if it wants a reply.
    pub fn refuse(&self, request: &Header, errno: i32) -> Result<()> {
        if request.no_reply() {
            return Ok(());
        }
        self.send(&request.refusal(errno), &[], &[])
    }

    /// Ends the connection. Threads waiting on either half return.
    pub fn shutdown(&self) {
        sys::shutdown(self.socket.as_fd());
    }

    /// True if the other end is gone.
    pub fn is_closed(&self) -> bool {
        sys::hung_up(self.socket.as_fd())
    }

    /// Returns another handle for the sending half.
    pub fn share(&self) -> Self {
        Self { socket: self.socket.clone() }
    }
}

/// Removes the first `sent` bytes of `parts`.
fn advance(parts: &mut &mut [&[u8]], mut sent: usize) {
    let mut whole = 0;
    for part in parts.iter_mut() {
        if sent < part.len() {
            *part = &part[sent..];
            break;
        }
        sent -= part.len();
        whole += 1;
    }
    let (_, rest) = std::mem::take(parts).split_at_mut(whole);
    *parts = rest;
}

impl Connection {
    /// Creates a connection over a connected socket.
    pub fn new(socket: UnixStream) -> Result<Self> {
        socket.set_nonblocking(false).map_err(|e| Error::System("set up a socket", e))?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(|e| Error::System("set up a socket", e))?;
        let socket = Arc::new(socket);
        let receiver = Receiver {
            socket: socket.clone(),
            buf: vec![0; MAX_MESSAGE],
            start: 0,
            end: 0,
            base: 0,
            fds: Vec::new(),
            patience: PATIENCE,
            eager: Eager::default(),
        };
        Ok(Self { receiver, sender: Sender { socket }, next_id: 0 })
    }

    /// Connects as a client to the server at `path` and negotiates a version. Waits up to `within` for its reply.
    pub fn connect(path: &Path, within: Duration) -> Result<(Self, Version)> {
        let socket = UnixStream::connect(path).map_err(|e| Error::System("connect to the socket", e))?;
        let mut connection = Self::new(socket)?;
        let reply = connection.call(Command::VERSION, &[&Version::ours().encode()], &[], within)?;
        let version = Version::decode(&reply.payload)?;
        if version.major != MAJOR {
            return Err(Error::Malformed(format!(
                "the server speaks vfio-user {}.{}, expected {MAJOR}.x",
                version.major, version.minor
            )));
        }
        Ok((connection, version))
    }

    /// Sends a request and waits for the reply. Requests of the other end that arrive in the meantime are refused with
    /// ENOTSUP.
    pub fn call(
        &mut self,
        command: Command,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<Reply> {
        self.next_id = self.next_id.wrapping_add(1);
        let id = self.next_id;
        self.sender.send(&Header::request(id, command, parts.iter().map(|p| p.len()).sum()), parts, fds)?;
        let begun = Instant::now();
        loop {
            let left = within.saturating_sub(begun.elapsed());
            let message = self.receiver.receive(Some(left)).map_err(|e| match e {
                Error::Silent(_, "a message") => Error::Silent(within.as_millis(), "an answer"),
                other => other,
            })?;
            match message.header.kind() {
                Some(Kind::Request) => self.sender.refuse(&message.header, libc::EOPNOTSUPP)?,
                Some(Kind::Reply) if message.header.id == id => {
                    if let Some(errno) = message.header.refused() {
                        return Err(Error::Refused { command, errno });
                    }
                    return Ok(Reply { payload: message.payload.to_vec(), fds: message.fds });
                }
                // The reply to a request that timed out.
                Some(Kind::Reply) => {}
                None => return Err(Error::Malformed("a message is neither request nor reply".into())),
            }
        }
    }

    /// Sends a request without a reply.
    pub fn tell(&mut self, command: Command, parts: &[&[u8]]) -> Result<()> {
        self.next_id = self.next_id.wrapping_add(1);
        let len = parts.iter().map(|p| p.len()).sum();
        self.sender.send(&Header::request(self.next_id, command, len).without_reply(), parts, &[])
    }

    /// Sends the structure `request`. The reply must begin with a `T`.
    pub fn ask<T: FromBytes>(
        &mut self,
        command: Command,
        request: &(impl IntoBytes + zerocopy::Immutable),
        within: Duration,
    ) -> Result<(T, Reply)> {
        let reply = self.call(command, &[request.as_bytes()], &[], within)?;
        let (value, _) = crate::message::read(&reply.payload)?;
        Ok((value, reply))
    }
}

/// A listening socket of a server in the file system. Its file is removed on drop.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    id: (u64, u64),
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).map(|m| (m.dev(), m.ino()))
}

impl Listener {
    /// Creates the socket. Replaces a socket left behind by a server that no longer listens.
    pub fn bind(path: &Path) -> Result<Self> {
        let made = match UnixListener::bind(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Self::is_stale(path) => {
                fs::remove_file(path).and_then(|()| UnixListener::bind(path))
            }
            other => other,
        };
        let socket = made.map_err(|e| Error::System("make the socket", e))?;
        let id = identity(path).map_err(|e| Error::System("look at the socket", e))?;
        Ok(Self { socket, path: path.into(), id })
    }

    fn is_stale(path: &Path) -> bool {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        is_socket && matches!(UnixStream::connect(path), Err(e) if e.kind() == ErrorKind::ConnectionRefused)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next client. [`Error::Closed`] after [`close`](Self::close).
    pub fn accept(&self) -> Result<UnixStream> {
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Err(Error::Closed),
                // The client has already disconnected.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(e) => return Err(Error::System("accept a client", e)),
            }
        }
    }

    /// Stops accepting clients. Threads waiting in [`accept`](Self::accept) return.
    pub fn close(&self) {
        sys::shutdown(self.socket.as_fd());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Not if another server has taken the name in the meantime.
        if identity(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
