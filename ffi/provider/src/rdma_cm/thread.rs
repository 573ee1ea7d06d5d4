//! The connection manager's thread, one per process: started when the process first communicates, stopped when it exits.

use cm::Time;
use driver::transport::Quiet;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// The running thread.
pub struct Thread {
    pub(super) handle: JoinHandle<()>,
    pub(super) wake: OwnedFd,
    /// When it wakes if nothing happens.
    pub(super) until: Option<Time>,
}

/// Starts a thread that blocks the program's signals. `migration` recognizes it by its name.
///
/// # Errors
/// Those of starting a thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let _quiet = Quiet::new();
    std::thread::Builder::new().name(format!("ironverbs-{name}")).stack_size(256 << 10).spawn(|| {
        node::timed::stay_apart();
        body();
    })
}
