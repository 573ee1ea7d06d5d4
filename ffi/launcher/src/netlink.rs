//! A netlink socket.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: a plain structure of integers.
    let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_pid = port;
    address
}

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

/// A socket of a netlink protocol.
pub struct Netlink(OwnedFd);

/// A received datagram, truncated to the buffer, and the sender's port.
pub struct Received {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The sender's port; 0 is the kernel.
    pub from: u32,
}

impl Netlink {
    /// Opens a socket of `kind` (type and flags of socket(2)) and `protocol`, closed on exec.
    pub fn open(kind: libc::c_int, protocol: libc::c_int) -> io::Result<Self> {
        // SAFETY: no memory is passed; the returned descriptor is new.
        unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind | libc::SOCK_CLOEXEC, protocol);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// Binds to `port`, or to a port that the kernel chooses if it is 0.
    pub fn bind(&self, port: u32) -> io::Result<()> {
        let address = address(port);
        // SAFETY: the address outlives the call.
        done(unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), ADDRESS_LEN) })
    }

    /// Its port; 0 until it has one.
    pub fn port(&self) -> io::Result<u32> {
        let (mut address, mut len) = (address(0), ADDRESS_LEN);
        // SAFETY: the kernel writes at most `len` bytes of the address.
        done(unsafe { libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut len) })?;
        Ok(address.nl_pid)
    }

    /// Sends a datagram to `port` without blocking; 0 is the kernel.
    pub fn send(&self, port: u32, bytes: &[u8]) -> io::Result<()> {
        let address = address(port);
        // SAFETY: bytes and address are only read and outlive the call.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const address).cast(),
                ADDRESS_LEN,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a datagram of at most `most` bytes, with the flags of recv(2).
    pub fn receive(&self, most: usize, flags: libc::c_int) -> io::Result<Received> {
        let mut bytes = vec![0; most];
        let (mut from, mut len) = (address(0), ADDRESS_LEN);
        // SAFETY: the kernel writes at most `most` bytes of the buffer and `len` of the address.
        let got = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                most,
                flags,
                (&raw mut from).cast(),
                &raw mut len,
            )
        };
        bytes.truncate(usize::try_from(got).map_err(|_| io::Error::last_os_error())?);
        Ok(Received { bytes, from: from.nl_pid })
    }

    fn option<T: Copy>(&self, level: libc::c_int, name: libc::c_int, nothing: T) -> T {
        let (mut value, mut len) = (nothing, size_of::<T>() as libc::socklen_t);
        let fd = self.0.as_raw_fd();
        // SAFETY: the kernel writes at most `len` bytes of the value, a structure of integers.
        let got = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
        if got == 0 { value } else { nothing }
    }

    /// True if a netlink option is enabled.
    pub fn has(&self, option: libc::c_int) -> bool {
        self.option::<libc::c_int>(libc::SOL_NETLINK, option, 0) != 0
    }

    /// The receive timeout; `None` is forever.
    pub fn patience(&self) -> Option<Duration> {
        let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let time = self.option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, never);
        let time =
            Duration::new(u64::try_from(time.tv_sec).ok()?, (time.tv_usec as u32).saturating_mul(1000));
        (!time.is_zero()).then_some(time)
    }

    /// Sets the receive timeout.
    pub fn set_patience(&self, time: Duration) -> io::Result<()> {
        let time = libc::timeval { tv_sec: time.as_secs() as _, tv_usec: time.subsec_micros() as _ };
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        // SAFETY: the value is only read and outlives the call.
        done(unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, ptr::from_ref(&time).cast(), len)
        })
    }

    /// True if its descriptors are non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK != 0
    }

    /// The inode, which identifies the socket on the machine.
    pub fn inode(&self) -> io::Result<u64> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills the structure if it returns 0, and it is read only then.
        unsafe {
            done(libc::fstat(self.0.as_raw_fd(), stat.as_mut_ptr()))?;
            Ok(stat.assume_init().st_ino)
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
