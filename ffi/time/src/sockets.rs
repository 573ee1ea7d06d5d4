//! The messages of threads to each other by files and sockets: a thread that hears something is no earlier than the one that said it.

use super::{Errno, player};
use clock::{Board, Player};
use libc::{c_int, c_void, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use std::hash::{DefaultHasher, Hash, Hasher};

/// One end of a socket's connection, as the kernel says it: the address's bytes. Nothing if it is no socket.
type Ask = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

fn end(fd: c_int, ask: Ask) -> Option<[u8; 128]> {
    let mut bytes = [0; size_of::<sockaddr_storage>()];
    let mut len = bytes.len() as socklen_t;
    // SAFETY: the kernel writes as many bytes as there are at most.
    (unsafe { ask(fd, bytes.as_mut_ptr().cast(), &raw mut len) } == 0 && len > 2).then_some(bytes)
}

/// The key by which the board knows a connection's direction: from this end, or to it. Only connections of IP have ends that differ.
fn direction(fd: c_int, from_here: bool) -> Option<u64> {
    let (here, there) = (end(fd, libc::getsockname)?, end(fd, libc::getpeername)?);
    let mut hash = DefaultHasher::new();
    let ends = if from_here { (here, there) } else { (there, here) };
    (here != there).then(|| {
        ends.hash(&mut hash);
        hash.finish().max(1)
    })
}

/// Something is about to be said.
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

/// The call returned that it was said by.
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

/// Something is to be heard: until then whoever says it, by this direction of a connection, calls the thread.
struct Hearing(Board, Player, Option<u64>);

/// A call begins that hears.
fn listen(fd: c_int) -> Option<Hearing> {
    let errno = Errno::keep();
    let (board, player) = player()?;
    let key = direction(fd, false);
    player.listen_to(key);
    drop(errno);
    Some(Hearing(board, player, key))
}

/// The call returned.
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
            // Somebody who is not on the board.
            None => _ = player.now(),
        },
        None => player.hear(None),
    }
}

/// Bytes of a message's parts.
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

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    let hearing = listen(fd);
    // SAFETY: the kernel checks what it is given.
    heard(hearing, unsafe { libc::syscall(libc::SYS_read, fd, to, len) } as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    let saying = say(fd, len);
    // SAFETY: the kernel checks what it is given.
    said(saying, unsafe { libc::syscall(libc::SYS_write, fd, from, len) } as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let nobody: *mut c_void = std::ptr::null_mut();
    let hearing = listen(fd);
    // SAFETY: the kernel checks what it is given.
    heard(hearing, unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, nobody, nobody) }
        as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let saying = say(fd, len);
    let nobody: *const c_void = std::ptr::null();
    // SAFETY: the kernel checks what it is given.
    said(saying, unsafe { libc::syscall(libc::SYS_sendto, fd, from, len, flags, nobody, 0) } as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    who: *mut sockaddr,
    who_len: *mut socklen_t,
) -> ssize_t {
    let hearing = listen(fd);
    // SAFETY: the kernel checks what it is given.
    heard(hearing, unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, flags, who, who_len) } as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    whom: *const sockaddr,
    whom_len: socklen_t,
) -> ssize_t {
    let saying = say(fd, len);
    // SAFETY: the kernel checks what it is given.
    said(saying, unsafe { libc::syscall(libc::SYS_sendto, fd, from, len, flags, whom, whom_len) } as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let hearing = listen(fd);
    // SAFETY: the kernel checks what it is given.
    heard(hearing, unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) } as ssize_t)
}

/// # Safety
/// As of the function of this name in libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let saying = say(fd, unsafe { bytes_of(message) });
    // SAFETY: the kernel checks what it is given.
    said(saying, unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) } as ssize_t)
}
