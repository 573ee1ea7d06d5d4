//! The thread of the connection manager, one per process: started when this process first speaks, stopped when it exits.

use cm::Time;
use driver::transport::Quiet;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// See above.
pub struct Thread {
    pub(super) handle: JoinHandle<()>,
    pub(super) wake: OwnedFd,
    /// Until when it sleeps if nothing happens.
    pub(super) until: Option<Time>,
}

/// Starts a thread that takes no signal of the program's. It is known for ours by its name (`migration`).
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
