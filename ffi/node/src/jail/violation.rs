//! Handles a system call that the jail refuses: the process reports the call and exits. The node's other programs clean up after it as
//! after a killed process.
#![allow(unsafe_code)]

use super::role::Role;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::{
    cell::Cell,
    fmt::{self, Write},
    io,
};

/// The exit status that a shell reports for a process killed by SIGSYS.
pub const STATUS: libc::c_int = 128 + libc::SIGSYS;

thread_local! {
    /// The role of the thread.
    static ROLE: Cell<&'static str> = const { Cell::new("") };
}

/// The leading fields of `siginfo_t` for SIGSYS.
#[repr(C)]
struct Info {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    _pad: libc::c_int,
    /// Address of the call.
    at: usize,
    /// System call number.
    call: libc::c_int,
    arch: libc::c_uint,
}

/// A line of text built without the allocator, truncated at its capacity.
struct Line {
    bytes: [u8; 200],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let taken = room.len().min(text.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// Installs the handler.
pub fn watch() -> io::Result<()> {
    let action = SigAction::new(SigHandler::SigAction(on_refusal), SaFlags::SA_ONSTACK, SigSet::all());
    // SAFETY: the handler is async-signal-safe.
    Ok(unsafe { sigaction(Signal::SIGSYS, &action) }.map(drop)?)
}

/// Records the role of the calling thread, and unblocks SIGSYS: a process that blocks it would be killed without a message.
pub fn watch_thread(role: Role) {
    ROLE.set(role.name());
    let _ = SigSet::from(Signal::SIGSYS).thread_unblock();
}

extern "C" fn on_refusal(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's structure, which begins like this one on all 64-bit Linux.
    let call = unsafe { (*info.cast::<Info>()).call };
    let mut line = Line { bytes: [0; 200], len: 0 };
    let _ = writeln!(
        line,
        "ironverbs: the jail of the {} thread refuses system call {call}: this process ends (docs/serve.md; --no-jail goes without)",
        ROLE.get()
    );
    // SAFETY: writes the line's bytes; the process exits here without running further code.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len);
        libc::_exit(STATUS);
    }
}
