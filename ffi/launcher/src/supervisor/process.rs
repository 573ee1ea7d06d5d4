//! A supervised program: its memory, descriptors and privileges. Values read from it may be false, and it may have ended.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// A thread of a program, by the ID in a notice.
#[derive(Clone, Copy, Debug)]
pub struct Process(pub u32);

/// A range of a program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its address.
    pub address: u64,
    /// Its length.
    pub len: usize,
}

/// `struct msghdr` of a 64-bit program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Address and size of the buffer for an address.
    pub name: Piece,
    /// Its data.
    pub pieces: Vec<Piece>,
    at: u64,
}

/// Maximum number of pieces of one message (`UIO_MAXIOV`).
const PIECES: u64 = 1024;
/// `CAP_NET_ADMIN`.
const NET_ADMIN: u32 = 12;

fn fault<T>() -> Result<T, i32> {
    Err(libc::EFAULT)
}

impl Process {
    /// Reads a range. Fails with EFAULT if a part of it is not mapped.
    pub fn read(self, piece: Piece) -> Result<Vec<u8>, i32> {
        let mut bytes = vec![0u8; piece.len];
        if piece.len == 0 {
            return Ok(bytes);
        }
        let remote = RemoteIoVec { base: piece.address as usize, len: piece.len };
        let got = process_vm_readv(self.pid(), &mut [IoSliceMut::new(&mut bytes)], &[remote]);
        if got == Ok(piece.len) { Ok(bytes) } else { fault() }
    }

    /// Writes to a range, truncated to its length.
    pub fn write(self, piece: Piece, bytes: &[u8]) -> Result<(), i32> {
        let len = bytes.len().min(piece.len);
        if len == 0 {
            return Ok(());
        }
        let remote = RemoteIoVec { base: piece.address as usize, len };
        let put = process_vm_writev(self.pid(), &[IoSlice::new(&bytes[..len])], &[remote]);
        if put == Ok(len) { Ok(()) } else { fault() }
    }

    fn pid(self) -> Pid {
        Pid::from_raw(self.0 as libc::pid_t)
    }

    /// Reads a number of `N` bytes.
    fn word<const N: usize>(self, address: u64) -> Result<[u8; N], i32> {
        self.read(Piece { address, len: N })?.try_into().map_err(|_| libc::EFAULT)
    }

    /// Reads a 32-bit number.
    pub fn u32(self, address: u64) -> Result<u32, i32> {
        self.word(address).map(u32::from_ne_bytes)
    }

    /// Writes a 32-bit number.
    pub fn put_u32(self, address: u64, value: u32) -> Result<(), i32> {
        self.write(Piece { address, len: 4 }, &value.to_ne_bytes())
    }

    /// Reads the message header at `at`.
    pub fn message(self, at: u64) -> Result<Message, i32> {
        let header: [u8; size_of::<libc::msghdr>()] = self.word(at)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| header[at + i]));
        let (name, vectors, count) = (word(0), word(16), word(24));
        let name_len = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        if count > PIECES {
            return Err(libc::EMSGSIZE);
        }
        let bytes = self.read(Piece { address: vectors, len: count as usize * 16 })?;
        let word = |piece: &[u8], at: usize| u64::from_ne_bytes(std::array::from_fn(|i| piece[at + i]));
        let pieces = bytes.chunks_exact(16).map(|p| Piece { address: word(p, 0), len: word(p, 8) as usize });
        let len = if name == 0 { 0 } else { name_len as usize };
        Ok(Message { name: Piece { address: name, len }, pieces: pieces.collect(), at })
    }

    /// Reads the data of `pieces`, at most `most` bytes. Fails with EMSGSIZE if there are more.
    pub fn gather(self, pieces: &[Piece], most: usize) -> Result<Vec<u8>, i32> {
        if room(pieces) > most {
            return Err(libc::EMSGSIZE);
        }
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(self.read(*piece)?);
        }
        Ok(all)
    }

    /// Distributes `bytes` over the pieces.
    pub fn scatter(self, pieces: &[Piece], mut bytes: &[u8]) -> Result<(), i32> {
        for piece in pieces {
            let (now, later) = bytes.split_at(piece.len.min(bytes.len()));
            self.write(*piece, now)?;
            bytes = later;
        }
        Ok(())
    }

    /// True if the thread has a pending signal that it does not block.
    pub fn has_signal(self) -> bool {
        let set =
            |name: &str| self.status(name).and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(0);
        (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
    }

    /// PID of the program that the thread belongs to.
    pub fn group(self) -> Option<u32> {
        self.status("Tgid:")?.parse().ok()
    }

    /// True if it has CAP_NET_ADMIN in effect.
    pub fn is_admin(self) -> bool {
        let effective = self.status("CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
        effective.is_some_and(|caps| caps & 1 << NET_ADMIN != 0)
    }

    fn status(self, key: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
    }

    /// The file behind descriptor `number`, as the program sees it.
    pub fn file(self, number: u32) -> Option<String> {
        let link = fs::read_link(format!("/proc/{}/fd/{number}", self.0)).ok()?;
        link.into_os_string().into_string().ok()
    }

    /// Path of its root directory, if its mount namespace is not this process's: that of a container, for instance.
    pub fn other_root(self) -> Option<PathBuf> {
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let its = namespace(&self.0.to_string())?;
        (namespace("self").as_ref() != Some(&its)).then(|| format!("/proc/{}/root", self.0).into())
    }

    /// The flags of the open descriptor `number`.
    pub fn file_flags(self, number: u32) -> Option<libc::c_int> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", self.0)).ok()?;
        let octal = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
        libc::c_int::from_str_radix(octal.trim(), 8).ok()
    }

    /// The inode of the socket behind descriptor `number`; `None` if it is not a socket.
    pub fn socket(self, number: u32) -> Option<u64> {
        self.file(number)?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }

    /// Duplicates descriptor `number` into this process.
    pub fn descriptor(self, number: u32) -> io::Result<OwnedFd> {
        let group = self.group().ok_or(ErrorKind::NotFound)?;
        let own = |fd: libc::c_long| match RawFd::try_from(fd) {
            // SAFETY: both calls below return new descriptors, which no other code in this process uses.
            Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: no memory is passed.
        let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, group, 0) })?;
        // SAFETY: no memory is passed; `process` is open until the call returns.
        own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
    }

    /// The first of `numbers` that is not open in it.
    pub fn free_descriptor(self, mut numbers: Range<u32>) -> Option<u32> {
        numbers.find(|number| fs::symlink_metadata(format!("/proc/{}/fd/{number}", self.0)).is_err())
    }
}

/// Total length of the pieces.
pub fn room(pieces: &[Piece]) -> usize {
    pieces.iter().fold(0, |sum: usize, p| sum.saturating_add(p.len))
}

impl Message {
    /// Writes the fields that a receive changes: the length of the address, no control data, the flags.
    pub fn finish(&self, process: Process, name_len: u32, flags: u32) -> Result<(), i32> {
        process.put_u32(self.at + 8, name_len)?;
        process.write(Piece { address: self.at + 40, len: 8 }, &0u64.to_ne_bytes())?;
        process.put_u32(self.at + 48, flags)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    /// This process, as the supervised program.
    fn me() -> Process {
        Process(std::process::id())
    }

    fn piece(bytes: &[u8]) -> Piece {
        Piece { address: bytes.as_ptr() as u64, len: bytes.len() }
    }

    #[test]
    fn a_message_is_read_from_its_pieces_and_written_back_over_them() {
        let (one, two) = (*b"abc", *b"defg");
        let mut vectors = [one.as_slice(), &two]
            .map(|b| libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() });
        let name = [9u8; 12];
        // SAFETY: a plain structure of integers and pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = 12;
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = 2;
        header.msg_controllen = 5;
        let message = me().message(&raw const header as u64).unwrap();
        assert_eq!((message.name, room(&message.pieces)), (piece(&name), 7));
        assert_eq!(me().gather(&message.pieces, 7).unwrap(), b"abcdefg");
        assert_eq!(me().gather(&message.pieces, 6), Err(libc::EMSGSIZE));
        me().scatter(&message.pieces, b"12345").unwrap();
        assert_eq!((std::hint::black_box(&one), std::hint::black_box(&two)), (b"123", b"45fg"));
        message.finish(me(), 3, 32).unwrap();
        let header = std::hint::black_box(header);
        assert_eq!((header.msg_namelen, header.msg_controllen, header.msg_flags), (3, 0, 32));
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault_and_too_many_pieces_are_refused() {
        assert_eq!(me().read(Piece { address: 8, len: 8 }), Err(libc::EFAULT));
        assert_eq!(me().write(Piece { address: 8, len: 8 }, b"x"), Err(libc::EFAULT));
        // SAFETY: a plain structure of integers and pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iovlen = 1025;
        assert_eq!(me().message(&raw const header as u64), Err(libc::EMSGSIZE));
    }

    #[test]
    fn descriptors_that_are_no_sockets_have_no_inode() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        use std::os::fd::AsRawFd;
        assert!(me().socket(a.as_raw_fd() as u32).is_some());
        assert_eq!((me().socket(file.as_raw_fd() as u32), me().group()), (None, Some(std::process::id())));
        let number = a.as_raw_fd() as u32;
        assert_eq!(me().free_descriptor(number..number + 1), None);
        assert_eq!(me().free_descriptor(1 << 20..(1 << 20) + 1), Some(1 << 20));
    }
}
