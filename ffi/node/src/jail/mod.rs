//! The jail of a server. `ironverbs serve` reads data from hostile guests and links, so each of its threads drops all unneeded privileges
//! before it reads any: an exploited bug then gives no access to files, programs or the network.
//!
//! Read in this order: this page (when privileges are dropped), `rules` (the permitted system calls), `violation` (the handling of any
//! other), `privileges`, and `asker` (how a thread that opens no files finds out about other processes).
//!
//! A filter applies to the thread that installs it. The threads of a server are started one after the other while it opens its node and
//! creates its sockets, so each begins with [`enter`]; the main thread enters last, after checking that all others did. In programs, which
//! have no jail, [`enter`] does nothing.

mod asker;
mod privileges;
mod role;
mod rules;
#[cfg(test)]
mod tests;
mod violation;

use super::sys;
use std::{
    fs, io,
    sync::OnceLock,
    time::{Duration, Instant},
};

pub(super) use asker::ask;
pub use role::{Needs, Role};

/// Time limit for started threads to enter the jail.
const PATIENCE: Duration = Duration::from_secs(5);

/// The privileges that [`enter`] leaves a thread; empty without a jail.
static BUILT: OnceLock<Needs> = OnceLock::new();

/// A jail that threads enter. Dropping it ends the asker; threads inside stay inside.
pub struct Jail {
    _asker: asker::Asker,
}

impl Jail {
    /// Prepares a jail: closes inherited descriptors and starts the asker.
    ///
    /// # Errors
    /// The kernel does not support trapping filters, or no process can be started.
    ///
    /// # Safety
    /// There are no other threads yet, and only the three standard streams are open.
    #[allow(unsafe_code)]
    pub unsafe fn prepare() -> io::Result<Self> {
        rules::can_trap()?;
        // SAFETY: guaranteed by the caller.
        unsafe { privileges::close_inherited() };
        violation::watch()?;
        // SAFETY: guaranteed by the caller.
        let asker = unsafe { asker::start() }?;
        Ok(Self { _asker: asker })
    }

    /// Builds the jail: threads started from now on enter it.
    pub fn build(&self, needs: Needs) {
        let _ = BUILT.set(needs);
    }

    /// The calling thread, which is the main thread, enters after all others. Returns the number of threads.
    ///
    /// # Errors
    /// A thread is outside, or could not enter.
    pub fn close(&self) -> io::Result<usize> {
        let begun = Instant::now();
        let main = std::process::id();
        loop {
            let outside = outside(main)?;
            match outside.first() {
                None => break,
                Some(name) if begun.elapsed() > PATIENCE => {
                    return Err(io::Error::other(format!("thread {name:?} is outside of it")));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let threads = fs::read_dir("/proc/self/task")?.count();
        let needs = BUILT.get().copied().unwrap_or_default();
        confine(Role::Main, needs)?;
        Ok(threads)
    }
}

/// The names of threads without a filter, except for thread `main`.
fn outside(main: u32) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        let thread = thread?;
        // The thread may have ended meanwhile.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("Seccomp:") != Some("2") && field("Pid:") != Some(&main.to_string()) {
            names.push(field("Name:").unwrap_or_default().into());
        }
    }
    Ok(names)
}

/// Confines the calling thread to the needs of `role`, if this process has a jail.
pub fn enter(role: Role) {
    let Some(needs) = BUILT.get() else { return };
    if let Err(error) = confine(role, *needs) {
        // `close` then finds the thread outside, and the server exits.
        eprintln!("ironverbs: the {role} thread cannot enter its jail: {error}");
    }
}

fn confine(role: Role, needs: Needs) -> io::Result<()> {
    violation::watch_thread(role);
    privileges::drop_capabilities(needs)?;
    rules::install(role, needs, (std::process::id(), sys::thread_id()))
}
