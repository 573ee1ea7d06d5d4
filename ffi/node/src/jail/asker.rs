//! A small helper process for a server, which cannot open files itself. It looks at other processes: whether the program that holds a lock
//! is stopped, and its name.
//!
//! It receives a PID and returns the result of [`Holder::look`]. It is jailed too, and can only read files. It exits when the server exits,
//! because that closes its socket.
#![allow(unsafe_code)]

use super::{
    role::{Needs, Role},
    rules, violation,
};
use crate::holder::Holder;
use crate::sys;
use nix::{
    errno::Errno,
    sys::{
        prctl::set_name,
        socket::{
            AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, setsockopt, shutdown, socketpair,
            sockopt,
        },
        time::TimeVal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Time limit for an answer. Without one, the server judges by time alone, as for a process in another PID namespace.
const PATIENCE: Duration = Duration::from_millis(100);
/// Maximum length of an answer: the kernel's program names are shorter than 64 bytes.
const LONGEST: usize = 256;

/// The server's end of the socket. A thread holds the lock until it has its answer.
static ASKER: OnceLock<Mutex<OwnedFd>> = OnceLock::new();

/// The asker's process. It ends when this is dropped or the server is killed.
pub struct Asker(Pid);

#[cfg(test)]
impl Asker {
    /// Its PID.
    pub fn pid(&self) -> libc::pid_t {
        self.0.as_raw()
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let Some(socket) = ASKER.get() else { return };
        let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        // A stopped asker ends later.
        let ended = || waitpid(self.0, Some(WaitPidFlag::WNOHANG)) != Ok(WaitStatus::StillAlive);
        while !ended() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Starts the asker.
///
/// # Safety
/// There are no other threads.
pub unsafe fn start() -> io::Result<Asker> {
    let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let most = TimeVal::new(0, PATIENCE.subsec_micros().into());
    setsockopt(&here, sockopt::ReceiveTimeout, &most)?;
    setsockopt(&here, sockopt::SendTimeout, &most)?;
    // SAFETY: there are no other threads, as the caller guarantees, so the child is a complete copy of this process; it never returns from
    // here.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let status = answer_all(there.as_raw_fd());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(libc::c_int::from(status.is_err())) }
        }
        ForkResult::Parent { child } => {
            let _ = ASKER.set(Mutex::new(here));
            Ok(Asker(child))
        }
    }
}

/// The asker's loop: answers requests until the socket is closed.
fn answer_all(socket: RawFd) -> io::Result<()> {
    // SAFETY: the child has no descriptors but the standard streams and the two ends; it keeps its own end and stderr.
    unsafe {
        if libc::dup2(socket, libc::STDIN_FILENO) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close(libc::STDOUT_FILENO);
        super::privileges::close_inherited();
    }
    let _ = set_name(c"ironverbs-asker");
    violation::watch_thread(Role::Asker);
    super::privileges::drop_capabilities(Needs::default())?;
    rules::install(Role::Asker, Needs::default(), (std::process::id(), sys::thread_id()))?;
    let mut asked = [0; 4];
    while receive(libc::STDIN_FILENO, &mut asked) == Some(asked.len()) {
        let holder = Holder::look(u32::from_ne_bytes(asked));
        send(libc::STDIN_FILENO, &holder.encode());
    }
    Ok(())
}

/// Asks the asker about process `pid`. `None` if this process has no asker and can look for itself.
pub fn ask(pid: u32) -> Option<Holder> {
    let socket = ASKER.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    let unknown = Holder { pid, program: String::new(), stopped: None };
    let begun = Instant::now();
    if !send(socket.as_raw_fd(), &pid.to_ne_bytes()) {
        return Some(unknown);
    }
    let mut said = [0; LONGEST];
    // Skips late answers to earlier requests.
    while let Some(len) = receive(socket.as_raw_fd(), &mut said).filter(|len| *len != 0) {
        match Holder::decode(&said[..len]).filter(|holder| holder.pid == pid) {
            Some(holder) => return Some(holder),
            None if begun.elapsed() > PATIENCE => break,
            None => {}
        }
    }
    Some(unknown)
}

fn send(socket: RawFd, bytes: &[u8]) -> bool {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    nix::sys::socket::send(socket, bytes, MsgFlags::MSG_NOSIGNAL) == Ok(bytes.len())
}

/// Length of the next packet, or 0 if the other end is closed. `None` on a timeout.
fn receive(socket: RawFd, into: &mut [u8]) -> Option<usize> {
    loop {
        match recv(socket, into, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            got => return got.ok(),
        }
    }
}
