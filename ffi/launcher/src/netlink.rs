//! A netlink socket.
#![allow(unsafe_code)]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    MsgFlags, NetlinkAddr, bind, getsockname, getsockopt, recvmsg, sendto, setsockopt, sockopt,
};
use nix::sys::stat::fstat;
use nix::sys::time::TimeVal;

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
            let fd = Errno::result(libc::socket(libc::AF_NETLINK, kind | libc::SOCK_CLOEXEC, protocol))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Binds to `port`, or to a port that the kernel chooses if it is 0.
    pub fn bind(&self, port: u32) -> io::Result<()> {
        Ok(bind(self.0.as_raw_fd(), &NetlinkAddr::new(port, 0))?)
    }

    /// Its port; 0 until it has one.
    pub fn port(&self) -> io::Result<u32> {
        Ok(getsockname::<NetlinkAddr>(self.0.as_raw_fd())?.pid())
    }

    /// Sends a datagram to `port` without blocking; 0 is the kernel.
    pub fn send(&self, port: u32, bytes: &[u8]) -> io::Result<()> {
        let (to, flags) = (NetlinkAddr::new(port, 0), MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        Ok(sendto(self.0.as_raw_fd(), bytes, &to, flags).map(drop)?)
    }

    /// Receives a datagram of at most `most` bytes.
    pub fn receive(&self, most: usize, flags: MsgFlags) -> io::Result<Received> {
        let mut bytes = vec![0; most];
        let mut buffer = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg::<NetlinkAddr>(self.0.as_raw_fd(), &mut buffer, None, flags)?;
        let (len, from) = (got.bytes, got.address.map_or(0, |from| from.pid()));
        bytes.truncate(len);
        Ok(Received { bytes, from })
    }

    /// True if a netlink option is enabled.
    pub fn has(&self, option: libc::c_int) -> bool {
        let (mut value, mut len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        let (fd, at) = (self.0.as_raw_fd(), (&raw mut value).cast());
        // SAFETY: the kernel writes at most `len` bytes of the value, a number.
        let got = unsafe { libc::getsockopt(fd, libc::SOL_NETLINK, option, at, &raw mut len) };
        got == 0 && value != 0
    }

    /// The receive timeout; `None` is forever.
    pub fn patience(&self) -> Option<Duration> {
        let time = getsockopt(&self.0, sockopt::ReceiveTimeout).ok()?;
        let (seconds, micros) = (u64::try_from(time.tv_sec()).ok()?, time.tv_usec() as u32);
        let time = Duration::new(seconds, micros.saturating_mul(1000));
        (!time.is_zero()).then_some(time)
    }

    /// Sets the receive timeout.
    pub fn set_patience(&self, time: Duration) -> io::Result<()> {
        let time = TimeVal::new(time.as_secs() as _, time.subsec_micros() as _);
        Ok(setsockopt(&self.0, sockopt::ReceiveTimeout, &time)?)
    }

    /// True if its descriptors are non-blocking.
    pub fn is_nonblocking(&self) -> bool {
        let flags = fcntl(&self.0, FcntlArg::F_GETFL);
        flags.is_ok_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
    }

    /// The inode, which identifies the socket on the machine.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(fstat(&self.0)?.st_ino)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
