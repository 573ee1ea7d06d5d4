//! System calls for messages with descriptors.
#![allow(unsafe_code)]

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// Maximum number of descriptors per message (SCM_MAX_FD).
const SCM_MAX_FD: usize = 253;
/// Size of their control message: a header and the descriptor numbers, in whole words.
const CONTROL_WORDS: usize = (size_of::<libc::cmsghdr>() + SCM_MAX_FD * size_of::<RawFd>()).div_ceil(8) + 2;

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(n) => return Ok(n),
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
}

fn control_len(fds: usize) -> u32 {
    (fds * size_of::<RawFd>()) as u32
}

/// Receives bytes into `buf` and descriptors into `fds`. Returns 0 if the other end is gone. Waits for bytes unless
/// `dont_wait`.
pub fn receive(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    dont_wait: bool,
) -> io::Result<usize> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: a plain structure of integers and pointers.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let flags = libc::MSG_CMSG_CLOEXEC | if dont_wait { libc::MSG_DONTWAIT } else { 0 };
    let got = retry(|| {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the structure refers to a buffer and a control buffer that live across the call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) }
    })?;
    // SAFETY: the kernel filled the control buffer; the macros stay within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(one) = header.as_ref() {
            if one.cmsg_level == libc::SOL_SOCKET && one.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                // A 32-bit number in musl, and a word in glibc.
                let len: usize = one.cmsg_len as _;
                let bytes = len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // Some descriptors were lost, because this process has reached its limit.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(got)
}

/// Sends as much of `parts` as the socket accepts, in order, with `fds`. Waits for room unless `dont_wait`.
pub fn send(
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    fds: &[BorrowedFd<'_>],
    dont_wait: bool,
) -> io::Result<usize> {
    if fds.len() > SCM_MAX_FD {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut vectors: Vec<libc::iovec> = parts
        .iter()
        .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
        .collect();
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: a plain structure of integers and pointers.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    if !fds.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: only arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(control_len(fds.len())) } as _;
        // SAFETY: the control buffer has room for one header and SCM_MAX_FD numbers.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if let Some(one) = header.as_mut() {
                one.cmsg_level = libc::SOL_SOCKET;
                one.cmsg_type = libc::SCM_RIGHTS;
                one.cmsg_len = libc::CMSG_LEN(control_len(fds.len())) as _;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for (i, fd) in fds.iter().enumerate() {
                    data.add(i).write_unaligned(fd.as_raw_fd());
                }
            }
        }
    }
    let flags = libc::MSG_NOSIGNAL | if dont_wait { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: the structure refers to buffers that live across the call.
    retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Waits until there is something to receive. Returns false on timeout.
pub fn readable(socket: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    match any_readable([socket], Some(within)) {
        // The caller recomputes the remaining time.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(true),
        other => other.map(|[ready]| ready),
    }
}

/// Waits until there is something to receive on one of `sockets`, and returns which. All false on timeout.
pub fn any_readable<const N: usize>(
    sockets: [BorrowedFd<'_>; N],
    within: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut all =
        sockets.map(|socket| libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let millis = |within: Duration| i32::try_from(within.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: passes the correct number of structures, which live across the call.
    match unsafe { libc::poll(all.as_mut_ptr(), N as libc::nfds_t, within.map_or(-1, millis)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(all.map(|one| one.revents != 0)),
    }
}

/// True if the other end is gone.
pub fn hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut one = libc::pollfd { fd: socket.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure that lives across the call.
    let ready = unsafe { libc::poll(&raw mut one, 1, 0) };
    ready > 0 && one.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Shuts down both directions. Threads waiting on the socket, or on a listener, return.
pub fn shutdown(socket: BorrowedFd<'_>) {
    // SAFETY: the descriptor is open.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}
