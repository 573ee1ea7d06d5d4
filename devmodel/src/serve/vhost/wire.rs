//! Messages of the vhost-user protocol (QEMU, docs/interop/vhost-user.rst), the subset needed for a PCI device over virtio.
//!
//! Numbers are in host byte order. Notifications are messages too, in both directions ("in-band"): there is a single descriptor
//! to wait for, a client's messages stay in order, and neither side holds eventfds of the other that it could abuse.

use std::{
    io::ErrorKind,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};
use vfio_user_proto::{Error, PATIENCE, Result, sys};

/// Requests of the client.
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const VRING_KICK: u32 = 35;
}

/// Our only request: buffers of a queue were used.
const VRING_CALL: u32 = 4;

/// Version 1, in the flags of every message.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
/// Flag of a reply.
const REPLY: u32 = 1 << 2;

const HEADER: usize = 12;
/// Maximum regions of a memory table.
pub const MAX_REGIONS: usize = 8;
/// Longest payload: a full memory table.
const MAX_BODY: usize = 8 + 32 * MAX_REGIONS;

/// A received request.
pub struct Message {
    /// Its number, from [`request`].
    pub request: u32,
    body: [u8; MAX_BODY],
    len: usize,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The 4-byte number at offset `at` of the payload.
    pub fn u32(&self, at: usize) -> Result<u32> {
        self.part(at).map(u32::from_ne_bytes)
    }

    /// The 8-byte number at offset `at` of the payload.
    pub fn u64(&self, at: usize) -> Result<u64> {
        self.part(at).map(u64::from_ne_bytes)
    }

    fn part<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        self.body[..self.len].get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or_else(|| {
            let (request, len) = (self.request, self.len);
            Error::Malformed(format!("request {request} has {len} bytes, expected {} at least", at + N))
        })
    }
}

/// Fills `buf` from the socket. Returns false if the peer closed the connection before the first byte.
fn fill(socket: &UnixStream, buf: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<bool> {
    let begun = Instant::now();
    let mut have = 0;
    while have < buf.len() {
        match sys::receive(socket.as_fd(), &mut buf[have..], fds, true) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(torn()),
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let left = PATIENCE.saturating_sub(begun.elapsed());
                let ready = sys::readable(socket.as_fd(), left);
                if !ready.map_err(|e| Error::System("wait for a message", e))? || left.is_zero() {
                    return Err(Error::Silent(PATIENCE.as_millis(), "the rest of a message"));
                }
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(e) => return Err(Error::System("receive a message", e)),
        }
        if fds.len() > MAX_REGIONS {
            return Err(Error::Malformed(format!(
                "{} descriptors with a message, expected {MAX_REGIONS} at most",
                fds.len()
            )));
        }
    }
    Ok(true)
}

fn torn() -> Error {
    Error::Malformed("the connection was closed in the middle of a message".into())
}

/// Receives the request that has begun to arrive.
pub fn receive(socket: &UnixStream) -> Result<Message> {
    let mut header = [0; HEADER];
    let mut fds = Vec::new();
    if !fill(socket, &mut header, &mut fds)? {
        return Err(Error::Closed);
    }
    let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (request, flags, len) = (word(0), word(4), word(8) as usize);
    if flags & (VERSION_MASK | REPLY) != VERSION {
        return Err(Error::Malformed(format!(
            "a message has flags {flags:#x}, expected a request of version 1"
        )));
    }
    if len > MAX_BODY {
        return Err(Error::Malformed(format!(
            "request {request} has {len} bytes, expected {MAX_BODY} at most"
        )));
    }
    let mut message = Message { request, body: [0; MAX_BODY], len, fds };
    if !fill(socket, &mut message.body[..len], &mut message.fds)? {
        return Err(torn());
    }
    Ok(message)
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    [request, VERSION | flags, body.len() as u32].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.extend_from_slice(body);
    bytes
}

/// Sends `bytes` without blocking. A client leaves room for the few bytes that answer its own requests.
fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    match sys::send(socket, &[bytes], &[], true) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(Error::Silent(0, "a message to be taken")),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Err(Error::Silent(0, "a message to be taken")),
        Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            Err(Error::Closed)
        }
        Err(e) => Err(Error::System("send a message", e)),
    }
}

/// Answers `request`.
pub fn reply(socket: &UnixStream, request: u32, body: &[u8]) -> Result<()> {
    send(socket.as_fd(), &message(request, REPLY, body))
}

/// Notifies the client, on its back-end request socket, that buffers of queue `index` were used.
pub fn call(socket: &OwnedFd, index: u32) -> Result<()> {
    let body = u64::from(index).to_le_bytes();
    match send(socket.as_fd(), &message(VRING_CALL, 0, &body)) {
        // The client has not read earlier notifications yet, which say the same.
        Err(Error::Silent(..)) => Ok(()),
        other => other,
    }
}
