//! The sockets that programs get in place of RDMA netlink sockets.
//!
//! Each is a real netlink socket, of the protocol for user-space use, so that the kernel handles its port, its options, polling and
//! queueing. Sends are handled here: the sent data is not forwarded, and the responses are sent into the socket. Receives are handled here
//! too, so that they report the kernel, port 0, as the sender. Messages from other senders are ignored. The sockets' numbers are
//! [`Reserved`], so calls on a program's own sockets are never trapped.

use super::process::{Message, Piece, Process, room};
use crate::netlink::{Netlink, Received};
use crate::nldev::{Asker, Inventory, answer};
use crate::notify::{Listener, Notice};
use crate::reserved::Reserved;
use nix::sys::socket::MsgFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Maximum size of a request in bytes.
const LARGEST: usize = 64 << 10;
/// Interval at which waiting readers are checked.
const LOOK: Duration = Duration::from_millis(20);
/// Length of a netlink address.
const ADDRESS: usize = 12;

/// A socket that a program was given.
struct Given {
    socket: Netlink,
    /// The (program, descriptor) pairs under which it was seen.
    seen: Vec<(u32, u32)>,
    /// Responses that did not fit into the socket yet.
    answers: VecDeque<Vec<u8>>,
    /// Threads that wait for a response.
    readers: Vec<Reader>,
}

/// A thread that is reading.
struct Reader {
    notice: Notice,
    into: Target,
    flags: libc::c_int,
    until: Option<Instant>,
}

/// Where a reader wants its data.
enum Target {
    /// A message: recvmsg(2).
    Message(Message),
    /// A buffer, and where to store the address: recvfrom(2).
    Buffer { pieces: [Piece; 1], name: u64, name_len: u64 },
}

/// The return value of a receive call, and the datagram if it was removed from its socket.
type Taken = (Result<i64, i32>, Option<Vec<u8>>);

/// All sockets that programs were given.
pub struct Sockets {
    ours: Netlink,
    port: u32,
    reserved: Reserved,
    given: BTreeMap<u64, Given>,
    undelivered: Vec<Undelivered>,
}

/// A socket that could not be reported because its caller was interrupted. It belongs to the program, and its next call returns it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Undelivered {
    program: u32,
    /// Requested type and flags.
    kind: libc::c_int,
    number: u32,
    inode: u64,
}

impl Sockets {
    /// Starts without sockets; new ones get `reserved` numbers.
    pub fn new(reserved: Reserved) -> io::Result<Self> {
        let ours = Netlink::open(libc::SOCK_RAW, libc::NETLINK_USERSOCK)?;
        ours.bind(0)?;
        Ok(Self { port: ours.port()?, ours, reserved, given: BTreeMap::new(), undelivered: Vec::new() })
    }

    /// Answers one call.
    pub fn serve(&mut self, listener: &Listener, inventory: &Inventory, notice: Notice) {
        if notice.call == libc::SYS_socket {
            return self.socket(listener, &notice);
        }
        let process = Process(notice.thread);
        let number = notice.args[0] as u32;
        let Some(inode) = process.socket(number).filter(|inode| self.given.contains_key(inode)) else {
            // A program that raised its limit may have another descriptor with this number.
            return listener.pass(&notice);
        };
        let Some(given) = self.given.get_mut(&inode) else { return };
        let whose = (process.group().unwrap_or(notice.thread), number);
        if !given.seen.contains(&whose) {
            given.seen.push(whose);
        }
        match notice.call {
            libc::SYS_sendto | libc::SYS_sendmsg => {
                let asked = given.asked(listener, inventory, &notice);
                let (result, replies) = asked.map_or_else(|e| (Err(e), vec![]), |(len, all)| (Ok(len), all));
                let count = replies.len();
                // They are available when the call returns.
                given.answers.extend(replies);
                given.fill(&self.ours);
                if !listener.answer(&notice, result) {
                    // An interrupted program repeats its request, and must not find two responses.
                    given
                        .put_back(&self.ours, self.port, |all| all.truncate(all.len().saturating_sub(count)));
                }
            }
            libc::SYS_recvfrom | libc::SYS_recvmsg => match reader(notice, process) {
                Ok(reader) => {
                    let until = given.socket.patience().map(|patience| Instant::now() + patience);
                    let waits = !given.socket.is_nonblocking() && reader.flags & libc::MSG_DONTWAIT == 0;
                    let waiting =
                        given.read(listener, &self.ours, self.port, Reader { until, ..reader }, waits);
                    given.readers.extend(waiting);
                }
                Err(errno) => drop(listener.answer(&notice, Err(errno))),
            },
            // Connects to the kernel, which the socket talks to anyway.
            _ => drop(listener.answer(&notice, connected(&notice, process))),
        }
        given.wake(listener, &self.ours, self.port);
    }

    /// Creates a socket and installs it in the caller.
    fn socket(&mut self, listener: &Listener, notice: &Notice) {
        self.forget();
        let process = Process(notice.thread);
        let (program, kind) = (process.group().unwrap_or(notice.thread), notice.args[1] as libc::c_int);
        let same = |made: &Undelivered| (made.program, made.kind) == (program, kind);
        let made = match self.undelivered.iter().position(same) {
            Some(at) => Ok(self.undelivered.swap_remove(at)),
            None => self.make(listener, notice, program, kind),
        };
        let arrived = listener.answer(notice, made.map(|made| made.number.into()));
        self.undelivered.extend(made.ok().filter(|_| !arrived));
    }

    fn make(
        &mut self,
        listener: &Listener,
        notice: &Notice,
        program: u32,
        kind: libc::c_int,
    ) -> Result<Undelivered, i32> {
        let process = Process(notice.thread);
        let (flags, bare) = (kind & !0xf, kind & 0xf);
        if !matches!(bare, libc::SOCK_RAW | libc::SOCK_DGRAM) {
            return Err(libc::ESOCKTNOSUPPORT);
        }
        if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
            return Err(libc::EINVAL);
        }
        // A program with unreadable memory gets the error it would get without a supervisor, and reads sysfs.
        let code = Piece { address: notice.instruction, len: 1 };
        process.read(code).map_err(|_| libc::EPROTONOSUPPORT)?;
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::ENOBUFS);
        let socket =
            Netlink::open(bare | flags & libc::SOCK_NONBLOCK, libc::NETLINK_USERSOCK).map_err(errno)?;
        let inode = socket.inode().map_err(errno)?;
        let number = process.free_descriptor(self.reserved.numbers()).ok_or(libc::EMFILE)?;
        let cloexec = flags & libc::SOCK_CLOEXEC != 0;
        // The call returns only after the limit is restored, so that the program does not see the raised limit.
        self.reserved
            .lift(notice.thread, || listener.place(notice, socket.as_fd(), number, cloexec))
            .map_err(|_| libc::EPROTONOSUPPORT)?;
        let seen = vec![(program, number)];
        self.given.insert(inode, Given { socket, seen, answers: VecDeque::new(), readers: Vec::new() });
        Ok(Undelivered { program, kind, number, inode })
    }

    /// Closes sockets that are no longer open in any program: they are not where they were last seen.
    fn forget(&mut self) {
        self.given.retain(|inode, given| {
            given.seen.retain(|(program, number)| Process(*program).socket(*number) == Some(*inode));
            !given.seen.is_empty()
        });
        self.undelivered.retain(|made| self.given.contains_key(&made.inode));
    }

    /// Time of the next check of waiting readers: one may time out or have a signal.
    pub fn next_deadline(&self) -> Option<Instant> {
        let look = Instant::now() + LOOK;
        self.given
            .values()
            .flat_map(|given| &given.readers)
            .map(|r| r.until.map_or(look, |until| until.min(look)))
            .min()
    }

    /// Answers readers with an expired timeout, and those with a pending signal: the kernel does not interrupt a call that is being
    /// answered.
    pub fn expire(&mut self, listener: &Listener) {
        let now = Instant::now();
        for given in self.given.values_mut() {
            given.readers.retain(|reader| {
                let over = match reader.until {
                    Some(until) if until <= now => Some(libc::EAGAIN),
                    _ => Process(reader.notice.thread).has_signal().then_some(libc::EINTR),
                };
                over.iter().for_each(|errno| _ = listener.answer(&reader.notice, Err(*errno)));
                over.is_none()
            });
        }
    }
}

impl Given {
    /// Handles a program's request. Returns the value for its call, and the response datagrams.
    fn asked(
        &self,
        listener: &Listener,
        inventory: &Inventory,
        notice: &Notice,
    ) -> Result<(i64, Vec<Vec<u8>>), i32> {
        let process = Process(notice.thread);
        let bytes = sent(notice, process)?;
        if !listener.waits(notice) {
            return Err(libc::EINTR);
        }
        let asker = self.asker(process).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
        Ok((bytes.len() as i64, answer(inventory, &bytes, &asker).datagrams))
    }

    /// The requester behind this socket. If it has no port yet, it gets the PID, as from the kernel.
    fn asker(&self, process: Process) -> io::Result<Asker> {
        if self.socket.port()? == 0 {
            let own = process.group().unwrap_or(0);
            self.socket.bind(own).or_else(|_| self.socket.bind(0))?;
        }
        Ok(Asker {
            port: self.socket.port()?,
            admin: process.is_admin(),
            ext_ack: self.socket.has(libc::NETLINK_EXT_ACK),
            cap_ack: self.socket.has(libc::NETLINK_CAP_ACK),
        })
    }

    /// Sends as many responses to the socket as fit.
    fn fill(&mut self, ours: &Netlink) {
        while let Some(next) = self.answers.front() {
            let to = self.socket.port().unwrap_or(0);
            match ours.send(to, next) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Closed for reading, or larger than the kernel's buffers. The responses after it are useless as well.
                Err(_) => return self.answers.clear(),
                Ok(()) => drop(self.answers.pop_front()),
            }
        }
    }

    /// Receives for a program, and answers its call. Returns a reader that `waits` if there is no data yet.
    fn read(
        &mut self,
        listener: &Listener,
        ours: &Netlink,
        port: u32,
        reader: Reader,
        waits: bool,
    ) -> Option<Reader> {
        let (result, bytes) = match self.take(listener, port, &reader) {
            Err(libc::EAGAIN) if waits => return Some(reader),
            Err(errno) => (Err(errno), None),
            Ok((result, bytes)) => (result, bytes),
        };
        if bytes.is_some() {
            self.fill(ours);
        }
        if let (false, Some(bytes)) = (listener.answer(&reader.notice, result), bytes) {
            // An interrupted program receives it again.
            self.put_back(ours, port, |all| all.push_front(bytes));
        }
        None
    }

    /// Gives a program the first datagram of its socket. Returns the value for its call, and the datagram if it was removed from the
    /// socket.
    fn take(&self, listener: &Listener, port: u32, reader: &Reader) -> Result<Taken, i32> {
        let process = Process(reader.notice.thread);
        let pieces = reader.into.pieces();
        let most = room(pieces).min(LARGEST);
        let kept = reader.flags & libc::MSG_PEEK != 0;
        loop {
            if !listener.waits(&reader.notice) {
                return Err(libc::EINTR);
            }
            let got = self.first(if kept { MsgFlags::MSG_PEEK } else { MsgFlags::empty() })?;
            if got.from == port {
                let result = given(reader, process, &got.bytes, most);
                return Ok((result, (!kept).then_some(got.bytes)));
            }
            if kept {
                let _ = self.first(MsgFlags::empty());
            }
        }
    }

    fn first(&self, flags: MsgFlags) -> Result<Received, i32> {
        let got = self.socket.receive(LARGEST, flags | MsgFlags::MSG_DONTWAIT);
        got.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Changes the data that is queued for the program, in its socket and behind it.
    fn put_back(&mut self, ours: &Netlink, port: u32, change: impl FnOnce(&mut VecDeque<Vec<u8>>)) {
        let waiting = std::iter::from_fn(|| self.first(MsgFlags::empty()).ok());
        let mut all: VecDeque<_> = waiting.filter(|got| got.from == port).map(|got| got.bytes).collect();
        all.append(&mut self.answers);
        change(&mut all);
        self.answers = all;
        self.fill(ours);
    }

    /// Lets waiting threads receive available data.
    fn wake(&mut self, listener: &Listener, ours: &Netlink, port: u32) {
        for reader in std::mem::take(&mut self.readers) {
            let waiting = self.read(listener, ours, port, reader, true);
            self.readers.extend(waiting);
        }
    }
}

/// Gives a reader the first `most` bytes of a datagram. Returns the value for its call.
fn given(reader: &Reader, process: Process, datagram: &[u8], most: usize) -> Result<i64, i32> {
    let bytes = &datagram[..most.min(datagram.len())];
    process.scatter(reader.into.pieces(), bytes)?;
    let cut = datagram.len() > bytes.len();
    reader.into.finish(process, if cut { libc::MSG_TRUNC as u32 } else { 0 })?;
    let all = reader.flags & libc::MSG_TRUNC != 0;
    Ok(if all { datagram.len() } else { bytes.len() } as i64)
}

/// The bytes that a program sends. The only valid destination is the kernel.
fn sent(notice: &Notice, process: Process) -> Result<Vec<u8>, i32> {
    let (name, bytes) = if notice.call == libc::SYS_sendmsg {
        let message = process.message(notice.args[1])?;
        (message.name, process.gather(&message.pieces, LARGEST)?)
    } else {
        let data = Piece { address: notice.args[1], len: notice.args[2] as usize };
        let address = notice.args[4];
        let len = if address == 0 { 0 } else { notice.args[5] as u32 as usize };
        (Piece { address, len }, process.gather(&[data], LARGEST)?)
    };
    to_kernel(process, name)?;
    Ok(bytes)
}

/// Checks that an address, if given, is the kernel's.
fn to_kernel(process: Process, name: Piece) -> Result<(), i32> {
    if name.len == 0 {
        return Ok(());
    }
    if name.len < ADDRESS {
        return Err(libc::EINVAL);
    }
    let address = process.read(Piece { len: ADDRESS, ..name })?;
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| address[at + i]));
    let family = u16::from_ne_bytes([address[0], address[1]]);
    match (family, word(4), word(8)) {
        (family, ..) if family != libc::AF_NETLINK as u16 => Err(libc::EINVAL),
        (_, 0, 0) => Ok(()),
        // Programs cannot send to each other by RDMA netlink.
        _ if process.is_admin() => Err(libc::ECONNREFUSED),
        _ => Err(libc::EPERM),
    }
}

fn connected(notice: &Notice, process: Process) -> Result<i64, i32> {
    let len = notice.args[2] as usize;
    if len < 2 {
        return Err(libc::EINVAL);
    }
    let family = process.read(Piece { address: notice.args[1], len: 2 })?;
    if u16::from_ne_bytes([family[0], family[1]]) == libc::AF_UNSPEC as u16 {
        return Ok(0);
    }
    to_kernel(process, Piece { address: notice.args[1], len }).map(|()| 0)
}

fn reader(notice: Notice, process: Process) -> Result<Reader, i32> {
    let message = notice.call == libc::SYS_recvmsg;
    let flags = notice.args[if message { 2 } else { 3 }] as libc::c_int;
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let into = if message {
        Target::Message(process.message(notice.args[1])?)
    } else {
        let data = Piece { address: notice.args[1], len: notice.args[2] as usize };
        Target::Buffer { pieces: [data], name: notice.args[4], name_len: notice.args[5] }
    };
    Ok(Reader { notice, into, flags, until: None })
}

impl Target {
    fn pieces(&self) -> &[Piece] {
        match self {
            Self::Message(message) => &message.pieces,
            Self::Buffer { pieces, .. } => pieces,
        }
    }

    /// Names the kernel as the sender.
    fn finish(&self, process: Process, flags: u32) -> Result<(), i32> {
        let mut kernel = [0u8; ADDRESS];
        kernel[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
        match self {
            Self::Message(message) => {
                process.write(message.name, &kernel)?;
                let len = if message.name.address == 0 { 0 } else { ADDRESS as u32 };
                message.finish(process, len, flags)
            }
            Self::Buffer { name: 0, .. } => Ok(()),
            Self::Buffer { name, name_len, .. } => {
                let len = process.u32(*name_len)? as usize;
                process.write(Piece { address: *name, len }, &kernel)?;
                process.put_u32(*name_len, ADDRESS as u32)
            }
        }
    }
}
