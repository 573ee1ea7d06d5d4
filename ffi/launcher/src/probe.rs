//! Checks for `ironverbs doctor`. Each attempts the actual operation, in a child process if it has side effects.

use std::io;
use std::path::Path;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::get_no_new_privs;

use super::reserved::Reserved;
use super::sys;
use super::{error, namespace, seccomp};

pub use super::sys::Answer;

/// Checks whether the host allows a namespace with a tmpfs over `/sys/class`.
pub fn namespaces() -> Answer {
    sys::in_child(|| {
        namespace::enter_fresh()?;
        sys::mount_tmpfs(Path::new("/sys/class"))
    })
}

/// The host setting that most likely forbids namespaces, and how to change it.
pub fn namespaces_remedy() -> String {
    error::remedy()
}

/// Checks whether a process may copy from another's memory with its consent, as passive RDMA targets require.
pub fn process_vm() -> Answer {
    // Without Yama in the kernel no permission is needed, and the call fails.
    let _ = sys::allow_any_tracer();
    let word = 0x1234_5678_9abc_def0u64;
    sys::in_child(|| sys::read_parent(&word))
}

/// Checks whether a seccomp filter can be installed.
pub fn seccomp() -> Answer {
    sys::in_child(seccomp::hide_rdma_netlink)
}

/// Checks whether set-uid programs such as `sudo` work in a run. They do not if the run needs a user namespace or no_new_privs.
pub fn set_uid() -> Answer {
    sys::in_child(|| {
        unshare(CloneFlags::CLONE_NEWNS)?;
        seccomp::hide_rdma_netlink()?;
        if get_no_new_privs()? { Err(io::Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }
    })
}

/// The result of [`supervisor`] if another one is already listening: the kernel allows only one.
pub const ANOTHER_LISTENS: Answer = Answer::No(libc::EBUSY);

/// Checks whether a supervisor can answer RDMA netlink.
pub fn supervisor() -> Answer {
    sys::in_child(|| seccomp::watch_rdma_netlink(Reserved::choose(None)?).map(drop))
}

/// The description of an errno.
pub fn errno(number: i32) -> String {
    io::Error::from_raw_os_error(number).to_string()
}
