//! Messages between threads by files and sockets. A receiver's time is at least the sender's. A wait for a message ends at a time of the
//! adapter if the socket has a limit.

use super::{Errno, errno, fail, own::instead, player, waits::ready};
use clock::{Board, Player};
use libc::{c_int, c_long, c_void, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timeval};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    ptr::{null, null_mut},
};

/// A system call that returns the address of one end of a socket's connection.
type Ask = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// The bytes of the address. `None` if `fd` is not a socket.
fn end(fd: c_int, ask: Ask) -> Option<[u8; 128]> {
    let mut bytes = [0; size_of::<sockaddr_storage>()];
    let mut len = bytes.len() as socklen_t;
    // SAFETY: the kernel writes no more bytes than there are.
    (unsafe { ask(fd, bytes.as_mut_ptr().cast(), &raw mut len) } == 0 && len > 2).then_some(bytes)
}

/// The board's key of one direction of a connection: from this end or to it. Only ends of IP connections differ.
fn direction(fd: c_int, from_here: bool) -> Option<u64> {
    let (here, there) = (end(fd, libc::getsockname)?, end(fd, libc::getpeername)?);
    let mut hash = DefaultHasher::new();
    let ends = if from_here { (here, there) } else { (there, here) };
    (here != there).then(|| {
        ends.hash(&mut hash);
        hash.finish().max(1)
    })
}

/// A call that sends.
struct Saying(Board, Option<u64>, u64);

fn say(fd: c_int, len: size_t) -> Option<Saying> {
    let errno = Errno::keep();
    let (board, player) = player()?;
    let (time, key) = (player.say(), direction(fd, true));
    if let Some(key) = key {
        board.say(key, len as u64, time);
    }
    drop(errno);
    Some(Saying(board, key, len as u64))
}

/// Ends the call with its result.
fn said(saying: Option<Saying>, bytes: ssize_t) -> ssize_t {
    let Some(Saying(board, key, len)) = saying else { return bytes };
    let less = len.saturating_sub(bytes.max(0) as u64);
    if let Some(key) = key.filter(|_| less != 0) {
        board.unsay(key, less);
    }
    let errno = Errno::keep();
    board.speak();
    drop(errno);
    bytes
}

/// A call that receives. If a thread sends by this direction of the connection before it ends, time stands still until this thread has
/// received.
struct Hearing(Board, Player, Option<u64>);

/// Begins the call.
fn listen(fd: c_int) -> Option<Hearing> {
    let errno = Errno::keep();
    let (board, player) = player()?;
    let key = direction(fd, false);
    player.listen_to(key);
    drop(errno);
    Some(Hearing(board, player, key))
}

/// Ends the call with its result.
fn heard(hearing: Option<Hearing>, bytes: ssize_t) -> ssize_t {
    let Some(Hearing(board, player, key)) = hearing else { return bytes };
    if bytes > 0 {
        let errno = Errno::keep();
        hear(board, player, key, bytes as u64);
        drop(errno);
    }
    player.listen_to(None);
    bytes
}

fn hear(board: Board, player: Player, key: Option<u64>, bytes: u64) {
    match key {
        Some(key) => match board.hear(key, bytes) {
            Some(time) => player.hear(Some(time)),
            // The sender is not on the board.
            None => _ = player.now(),
        },
        None => player.hear(None),
    }
}

/// Limit of calls on a socket in nanoseconds, by `SO_RCVTIMEO` or `SO_SNDTIMEO`. `None` if the socket has none, if its calls do not block,
/// or if the file is not a socket.
fn limit(fd: c_int, option: c_int, flags: c_int) -> Option<u64> {
    let _errno = Errno::keep();
    let (mut limit, mut len) = (timeval { tv_sec: 0, tv_usec: 0 }, size_of::<timeval>() as socklen_t);
    // SAFETY: the kernel writes no more bytes than there are.
    let failed =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut limit).cast(), &raw mut len) };
    let ns = limit.tv_sec as u64 * 1_000_000_000 + limit.tv_usec as u64 * 1000;
    // SAFETY: it takes no addresses.
    let waits = || unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK == 0;
    Some(ns).filter(|ns| failed == 0 && *ns > 0 && flags & libc::MSG_DONTWAIT == 0 && waits())
}

/// Receives by `call` once there is something to receive.
fn hearing(fd: c_int, flags: c_int, call: impl FnOnce() -> c_long) -> ssize_t {
    let hearing = listen(fd);
    let found = limit(fd, libc::SO_RCVTIMEO, flags).map_or(Ok(()), |ns| ready(fd, libc::POLLIN, ns));
    heard(hearing, found.map_or_else(|errno| fail(errno) as ssize_t, |()| call() as ssize_t))
}

/// Sends `len` bytes by `call` once there is room for some.
fn saying(fd: c_int, len: size_t, flags: c_int, call: impl FnOnce() -> c_long) -> ssize_t {
    let saying = say(fd, len);
    let found = limit(fd, libc::SO_SNDTIMEO, flags).map_or(Ok(()), |ns| ready(fd, libc::POLLOUT, ns));
    said(saying, found.map_or_else(|errno| fail(errno) as ssize_t, |()| call() as ssize_t))
}

/// Total length of a message's parts.
///
/// # Safety
/// `message` is null, or a message whose parts can be read.
unsafe fn bytes_of(message: *const msghdr) -> size_t {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(message) = message.as_ref() else { return 0 };
        (0..message.msg_iovlen).map(|n| (*message.msg_iov.add(n)).iov_len).sum()
    }
}

/// The result of a connect that ended in the background.
fn outcome(fd: c_int) -> c_int {
    let (mut error, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: the kernel writes no more bytes than there are.
    match unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len)
    } {
        0 if error == 0 => 0,
        0 => fail(error),
        _ => -1,
    }
}

instead! {
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        hearing(fd, 0, || libc::syscall(libc::SYS_read, fd, to, len))
    }

    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        saying(fd, len, 0, || libc::syscall(libc::SYS_write, fd, from, len))
    }

    fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        recvfrom(fd, to, len, flags, null_mut(), null_mut())
    }

    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        sendto(fd, from, len, flags, null(), 0)
    }

    fn recvfrom(fd: c_int, to: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, room: *mut socklen_t) -> ssize_t {
        hearing(fd, flags, || libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, from, room))
    }

    fn sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t {
        saying(fd, len, flags, || libc::syscall(libc::SYS_sendto, fd, from, len, flags, to, to_len))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        hearing(fd, flags, || libc::syscall(libc::SYS_recvmsg, fd, message, flags))
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        saying(fd, bytes_of(message), flags, || libc::syscall(libc::SYS_sendmsg, fd, message, flags))
    }

    fn accept(fd: c_int, from: *mut sockaddr, room: *mut socklen_t) -> c_int {
        accept4(fd, from, room, 0)
    }

    fn accept4(fd: c_int, from: *mut sockaddr, room: *mut socklen_t, flags: c_int) -> c_int {
        match limit(fd, libc::SO_RCVTIMEO, 0).map_or(Ok(()), |ns| ready(fd, libc::POLLIN, ns)) {
            Ok(()) => libc::syscall(libc::SYS_accept4, fd, from, room, flags) as c_int,
            Err(error) => fail(error),
        }
    }

    fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
        let call = || libc::syscall(libc::SYS_connect, fd, to, len) as c_int;
        let Some(ns) = limit(fd, libc::SO_SNDTIMEO, 0).filter(|_| player().is_some()) else { return call() };
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        let connected = call();
        let kept = Errno::keep();
        libc::fcntl(fd, libc::F_SETFL, flags);
        drop(kept);
        match (connected, errno()) {
            (0, _) => 0,
            (_, libc::EINPROGRESS) => match ready(fd, libc::POLLOUT, ns) {
                Ok(()) => outcome(fd),
                Err(libc::EAGAIN) => fail(libc::EINPROGRESS),
                Err(error) => fail(error),
            },
            // The queue of a Unix socket is full, and poll(2) does not tell when it has room.
            (_, libc::EAGAIN) => call(),
            _ => -1,
        }
    }
}
