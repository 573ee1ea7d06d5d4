//! The sockets programs were given in place of RDMA netlink's.
//!
//! Each is a netlink socket all the same, of the protocol that is free for users, so that its port, its options, waiting on
//! it and what waits in it are the kernel's work. Sending is answered here: what is sent goes nowhere, and the answers are sent
//! into the socket. Reading is, too, so that what is read comes from the kernel, port 0. Whoever else sends into the socket is
//! not heard. Their numbers are [`Reserved`], so the calls of a program on sockets of its own never come here.

use super::process::{Message, Piece, Process, room};
use crate::netlink::Netlink;
use crate::nldev::{Asker, Inventory, answer};
use crate::notify::{Listener, Notice};
use crate::reserved::Reserved;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// Most bytes of one request.
const LARGEST: usize = 64 << 10;
/// Length of a netlink address.
const ADDRESS: usize = 12;
/// Options of a socket that say how errors are reported.
const NETLINK_CAP_ACK: libc::c_int = 10;
const NETLINK_EXT_ACK: libc::c_int = 11;

/// A socket that a program was given.
struct Given {
    socket: Netlink,
    /// Programs and descriptors that it was seen as.
    seen: Vec<(u32, u32)>,
    /// Answers for which there was no room yet.
    answers: VecDeque<Vec<u8>>,
    /// Threads that wait for an answer.
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
    /// A buffer, and where the address goes: recvfrom(2).
    Buffer { pieces: [Piece; 1], name: u64, name_len: u64 },
}

/// All sockets that programs were given.
pub struct Sockets {
    ours: Netlink,
    port: u32,
    reserved: Reserved,
    given: BTreeMap<u64, Given>,
    undelivered: Vec<Undelivered>,
}

/// A socket whose caller was interrupted before it learnt of it. It belongs to the program, whose next call gets it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Undelivered {
    program: u32,
    /// Type and flags asked for.
    kind: libc::c_int,
    number: u32,
    inode: u64,
}

impl Sockets {
    /// No sockets yet; new ones get `reserved` numbers.
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
            // A program that raised its own limit has a descriptor of its own at this number.
            return listener.pass(&notice);
        };
        let Some(given) = self.given.get_mut(&inode) else { return };
        let whose = (process.group().unwrap_or(notice.thread), number);
        if !given.seen.contains(&whose) {
            given.seen.push(whose);
        }
        let result = match notice.call {
            libc::SYS_sendto | libc::SYS_sendmsg => sent(&notice, process).and_then(|bytes| {
                if !listener.waits(&notice) {
                    return Err(libc::EINTR);
                }
                let asker = given.asker(process).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
                let replies = answer(inventory, &bytes, &asker);
                given.answers.extend(replies.datagrams);
                given.fill(&self.ours);
                Ok(bytes.len() as i64)
            }),
            libc::SYS_recvfrom | libc::SYS_recvmsg => match reader(notice, process) {
                Ok(reader) => {
                    let until = given.socket.patience().map(|patience| Instant::now() + patience);
                    let waits = !given.socket.is_nonblocking() && reader.flags & libc::MSG_DONTWAIT == 0;
                    match given.read(listener, &self.ours, self.port, &reader) {
                        Err(libc::EAGAIN) if waits => return given.readers.push(Reader { until, ..reader }),
                        other => other,
                    }
                }
                Err(errno) => Err(errno),
            },
            // Connected to the kernel, which it talks to anyway.
            _ => connected(&notice, process),
        };
        listener.answer(&notice, result);
        given.wake(listener, &self.ours, self.port);
    }

    /// Makes a socket and gives it to the caller.
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
        // A program whose memory cannot be read gets the answer it would get without a supervisor, and reads sysfs.
        let code = Piece { address: notice.instruction, len: 1 };
        process.read(code).map_err(|_| libc::EPROTONOSUPPORT)?;
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::ENOBUFS);
        let socket =
            Netlink::open(bare | flags & libc::SOCK_NONBLOCK, libc::NETLINK_USERSOCK).map_err(errno)?;
        let inode = socket.inode().map_err(errno)?;
        let number = process.free_descriptor(self.reserved.numbers()).ok_or(libc::EMFILE)?;
        let cloexec = flags & libc::SOCK_CLOEXEC != 0;
        // The program must not see the raised limit, so its call returns only afterwards.
        self.reserved
            .lift(notice.thread, || listener.place(notice, socket.as_fd(), number, cloexec))
            .map_err(|_| libc::EPROTONOSUPPORT)?;
        let seen = vec![(program, number)];
        self.given.insert(inode, Given { socket, seen, answers: VecDeque::new(), readers: Vec::new() });
        Ok(Undelivered { program, kind, number, inode })
    }

    /// Closes sockets that no program has any more, since they are no longer where they were seen.
    fn forget(&mut self) {
        self.given.retain(|inode, given| {
            given.seen.retain(|(program, number)| Process(*program).socket(*number) == Some(*inode));
            !given.seen.is_empty()
        });
        self.undelivered.retain(|made| self.given.contains_key(&made.inode));
    }

    /// When the next reader's time runs out.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.given.values().flat_map(|given| given.readers.iter().filter_map(|r| r.until)).min()
    }

    /// Answers readers that waited long enough.
    pub fn expire(&mut self, listener: &Listener) {
        let now = Instant::now();
        for given in self.given.values_mut() {
            given.readers.retain(|reader| {
                let over = reader.until.is_some_and(|until| until <= now);
                if over {
                    listener.answer(&reader.notice, Err(libc::EAGAIN));
                }
                !over
            });
        }
    }
}

impl Given {
    /// The asker behind this socket. If it has no port yet, it gets the pid, as with the kernel.
    fn asker(&self, process: Process) -> io::Result<Asker> {
        if self.socket.port()? == 0 {
            let own = process.group().unwrap_or(0);
            self.socket.bind(own).or_else(|_| self.socket.bind(0))?;
        }
        Ok(Asker {
            port: self.socket.port()?,
            admin: process.is_admin(),
            ext_ack: self.socket.has(NETLINK_EXT_ACK),
            cap_ack: self.socket.has(NETLINK_CAP_ACK),
        })
    }

    /// Sends as many answers to the socket as it has room for.
    fn fill(&mut self, ours: &Netlink) {
        while let Some(next) = self.answers.front() {
            let to = self.socket.port().unwrap_or(0);
            match ours.send(to, next) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Closed for reading, or larger than the kernel's buffers. What follows is of no use either.
                Err(_) => return self.answers.clear(),
                Ok(()) => drop(self.answers.pop_front()),
            }
        }
    }

    /// Reads for a program. Returns the value that its call returns.
    fn read(&mut self, listener: &Listener, ours: &Netlink, port: u32, reader: &Reader) -> Result<i64, i32> {
        let process = Process(reader.notice.thread);
        let pieces = reader.into.pieces();
        let kept = reader.flags & libc::MSG_PEEK;
        let most = room(pieces).min(LARGEST);
        let got = loop {
            if !listener.waits(&reader.notice) {
                return Err(libc::EINTR);
            }
            let got = self.socket.receive(most, kept | libc::MSG_DONTWAIT);
            let got = got.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
            if got.from == port {
                break got;
            }
            if kept != 0 {
                let _ = self.socket.receive(0, libc::MSG_DONTWAIT);
            }
        };
        process.scatter(pieces, &got.bytes)?;
        let cut = got.whole > got.bytes.len();
        reader.into.finish(process, if cut { libc::MSG_TRUNC as u32 } else { 0 })?;
        if kept == 0 {
            self.fill(ours);
        }
        let all = reader.flags & libc::MSG_TRUNC != 0;
        Ok(if all { got.whole } else { got.bytes.len() } as i64)
    }

    /// Lets waiting threads read what there is.
    fn wake(&mut self, listener: &Listener, ours: &Netlink, port: u32) {
        let waiting = std::mem::take(&mut self.readers);
        for reader in waiting {
            match self.read(listener, ours, port, &reader) {
                Err(libc::EAGAIN) => self.readers.push(reader),
                result => {
                    listener.answer(&reader.notice, result);
                }
            }
        }
    }
}

/// What a program sends. There is only the kernel to send to.
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

/// Checks that an address, if there is one, is the kernel's.
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
        // Programs may not send to each other by RDMA netlink.
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
