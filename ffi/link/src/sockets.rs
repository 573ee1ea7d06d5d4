//! Socket calls and options that the standard library lacks.
#![allow(unsafe_code)]

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::{
    fs, io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::{
            fs::FileTypeExt,
            net::{UnixDatagram, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// Requested buffer size in each direction in bytes; the kernel limits it, except for root.
const BUFFER: libc::c_int = 4 << 20;

fn set(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value lives across the call.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives a socket large buffers, as far as the host allows.
pub fn enlarge(fd: RawFd) {
    for (of_root, option) in
        [(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF), (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)]
    {
        // Smaller buffers are slower, not wrong.
        let _ =
            set(fd, libc::SOL_SOCKET, of_root, BUFFER).or_else(|_| set(fd, libc::SOL_SOCKET, option, BUFFER));
    }
}

/// Lets a UDP socket receive several packets of equal length as one, with their length. Kernels before 5.0 give one at a time.
pub fn receive_many(fd: RawFd) {
    let _ = set(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// Prevents routers and this host from fragmenting a UDP socket's packets (annex A17: RoCE v2 is not fragmented). With it, Linux gives IPv4
/// packets of an unconnected socket the identification 0.
pub fn forbid_fragments(fd: RawFd, v6: bool) -> io::Result<()> {
    match v6 {
        true => set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        false => set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
    }
}

/// Waits until one of `read` is readable or `write` writable, at most for `most`; returns true if one is. An error counts as ready.
pub fn wait(read: &[RawFd], write: Option<RawFd>, most: Option<Duration>) -> bool {
    let reads = read.iter().map(|fd| entry(*fd, libc::POLLIN));
    poll(&mut reads.chain(write.map(|fd| entry(fd, libc::POLLOUT))).collect::<Vec<_>>(), most)
}

/// The places of those of `fds` that are readable now. An error counts as readable.
pub fn readable(fds: &[RawFd]) -> Vec<usize> {
    let mut all: Vec<_> = fds.iter().map(|fd| entry(*fd, libc::POLLIN)).collect();
    poll(&mut all, Some(Duration::ZERO));
    (0..all.len()).filter(|at| all[*at].revents != 0).collect()
}

fn entry(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

fn poll(all: &mut [libc::pollfd], most: Option<Duration>) -> bool {
    let time = most.map(|most| libc::timespec {
        tv_sec: most.as_secs().min(3600) as _,
        tv_nsec: most.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time live across the call.
    unsafe { libc::ppoll(all.as_mut_ptr(), all.len() as libc::nfds_t, time, std::ptr::null()) > 0 }
}

/// The path of a socket of this process, removed when dropped.
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// Claims `path`: removes a socket that no process has open any more.
    pub fn claim(path: &Path) -> io::Result<Self> {
        if let Ok(meta) = fs::symlink_metadata(path) {
            if !meta.file_type().is_socket() {
                let why = format!("expected room for a socket, found something else at {}", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            if is_listened_on(path)? {
                let why = format!("another process listens on {}", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            fs::remove_file(path)?;
        }
        Ok(Self(path.into()))
    }
}

/// True if a process has the socket at `path` open. A socket that is connected to another peer fails with a different error than an
/// abandoned one.
fn is_listened_on(path: &Path) -> io::Result<bool> {
    let result = match UnixDatagram::unbound()?.connect(path) {
        Err(e) if e.raw_os_error() == Some(libc::EPROTOTYPE) => connect_now(path).map(drop),
        other => other,
    };
    let gone = [Some(libc::ECONNREFUSED), Some(libc::ENOENT)];
    Ok(!result.is_err_and(|e| gone.contains(&e.raw_os_error())))
}

/// Connects a stream to the socket at `path`, if its listener has room for it now (else EAGAIN). Does not block.
pub fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, kind, None)?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream.into())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
