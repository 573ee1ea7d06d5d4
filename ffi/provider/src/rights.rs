//! What the kernel's verbs ask of a program's credentials, asked here: there is no kernel behind our device files.

use libc::c_int;

/// Number of the capability (capabilities(7)).
const CAP_NET_RAW: u32 = 13;
/// `_LINUX_CAPABILITY_VERSION_3`: two sets of 32 capabilities.
const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`
#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

/// `struct __user_cap_data_struct`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// EPERM unless the calling thread has CAP_NET_RAW in effect. ib_uverbs asks for it where a program would send frames with any
/// addresses or steer those of others to itself: raw packet queue pairs and flows.
pub fn raw_packets() -> Result<(), c_int> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both arguments outlive the call; of this version the kernel reads and writes one header and writes two of the
    // structures behind it (capget(2)).
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    match result == 0 && sets[0].effective & 1 << CAP_NET_RAW != 0 {
        true => Ok(()),
        false => Err(libc::EPERM),
    }
}
