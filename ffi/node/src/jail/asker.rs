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
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
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
pub struct Asker(libc::pid_t);

#[cfg(test)]
impl Asker {
    /// Its PID.
    pub fn pid(&self) -> libc::pid_t {
        self.0
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let Some(socket) = ASKER.get() else { return };
        let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        // SAFETY: the descriptor is open; the process is a child of this one, and no other thread waits for it.
        unsafe {
            libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR);
            // A stopped asker ends later.
            while libc::waitpid(self.0, ptr::null_mut(), libc::WNOHANG) == 0 && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Starts the asker.
///
/// # Safety
/// There are no other threads.
pub unsafe fn start() -> io::Result<Asker> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two new descriptors.
    let (here, there) = unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    let most = libc::timeval { tv_sec: 0, tv_usec: PATIENCE.subsec_micros().into() };
    let len = size_of_val(&most) as libc::socklen_t;
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: `most` lives across the call.
        let done = unsafe {
            libc::setsockopt(here.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const most).cast(), len)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: there are no other threads, as the caller guarantees, so the child is a complete copy of this process; it never returns from
    // here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = answer_all(there.as_raw_fd());
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(libc::c_int::from(status.is_err())) }
        }
        child => {
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
        libc::prctl(libc::PR_SET_NAME, c"ironverbs-asker".as_ptr());
    }
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
    // SAFETY: the bytes live across the call.
    let sent = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    sent == bytes.len() as isize
}

/// Length of the next packet, or 0 if the other end is closed. `None` on a timeout.
fn receive(socket: RawFd, into: &mut [u8]) -> Option<usize> {
    loop {
        // SAFETY: the buffer lives across the call.
        let got = unsafe { libc::recv(socket, into.as_mut_ptr().cast(), into.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => return Some(got),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
