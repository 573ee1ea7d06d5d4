//! Capabilities of the calling thread (capget(2)).
#![allow(unsafe_code)]

use std::io;

/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`: two words for each set.
const VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    /// Zero: the calling thread.
    thread: libc::c_int,
}

/// `struct __user_cap_data_struct`: 32 capabilities of each of the three sets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sets {
    /// The capabilities that the kernel checks.
    pub effective: u32,
    /// The capabilities that can be made effective.
    pub permitted: u32,
    /// The capabilities that are preserved across exec.
    pub inheritable: u32,
}

fn call(number: libc::c_long, sets: &mut [Sets; 2]) -> io::Result<()> {
    let mut header = Header { version: VERSION, thread: 0 };
    // SAFETY: header and sets outlive the call; for this version the kernel reads and writes one header and two structures of three words,
    // which match the arguments.
    match unsafe { libc::syscall(number, &raw mut header, sets.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the calling thread's capabilities: 0 to 31, and 32 to 63.
pub fn get() -> io::Result<[Sets; 2]> {
    let mut sets = [Sets::default(); 2];
    call(libc::SYS_capget, &mut sets).map(|()| sets)
}

/// Sets the calling thread's capabilities.
pub fn set(mut sets: [Sets; 2]) -> io::Result<()> {
    call(libc::SYS_capset, &mut sets)
}
