//! Takes a device's events while no thread looks at its queues: a thread, or a task of tokio.
#![cfg_attr(feature = "tokio", allow(unsafe_code))] // tokio asks for a promise about the descriptor

use crate::{Error, Result, verbs};
use std::{
    sync::{Arc, Weak},
    thread::{self, JoinHandle},
    time::Duration,
};
#[cfg(feature = "tokio")]
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    task, time,
};

/// A device whose events have to be taken.
pub(crate) trait Served: Send + Sync {
    /// Takes the events, and returns the time until it wants to be called again in any case.
    fn serve(&self) -> Option<Duration>;
}

/// The thread or task of a device.
#[derive(Default)]
pub(crate) enum Reactor {
    #[default]
    Idle,
    Thread(JoinHandle<()>),
    #[cfg(feature = "tokio")]
    Task(task::JoinHandle<()>),
}

impl Reactor {
    /// Starts it, unless it runs.
    pub fn start(&mut self, raw: &Arc<verbs::Device>, device: Weak<dyn Served>) -> Result<()> {
        let runs = match self {
            Self::Idle => false,
            Self::Thread(thread) => !thread.is_finished(),
            #[cfg(feature = "tokio")]
            Self::Task(task) => !task.is_finished(),
        };
        if !runs {
            *self = Self::started(raw.clone(), device)?;
        }
        Ok(())
    }

    fn started(raw: Arc<verbs::Device>, device: Weak<dyn Served>) -> Result<Self> {
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = Handle::try_current() {
            let failed = |error| Error::System("cannot wait for the device's events", error);
            let fd = raw.events().fd().try_clone_to_owned().map_err(failed)?;
            // SAFETY: the `AsyncFd` owns the descriptor, which stays open and the same until both are dropped.
            let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
            let fd = fd.map_err(|error| failed(error.into()))?;
            return Ok(Self::Task(runtime.spawn(task(fd, device))));
        }
        let thread = node::timed::spawn_apart("ironverbs-events", 2 << 20, move || run(&raw, &device));
        thread.map(Self::Thread).map_err(|error| Error::System("cannot start a thread", error))
    }

    /// Ends it. The device is about to go, and `raw` has been woken.
    pub fn stop(self) {
        match self {
            Self::Idle => {}
            Self::Thread(thread) if thread.thread().id() == thread::current().id() => {}
            Self::Thread(thread) => _ = thread.join(),
            #[cfg(feature = "tokio")]
            Self::Task(task) => task.abort(),
        }
    }
}

fn run(raw: &Arc<verbs::Device>, device: &Weak<dyn Served>) {
    while let Some(shared) = device.upgrade() {
        let timeout = shared.serve();
        drop(shared);
        if device.strong_count() == 0 || raw.events().wait(timeout).is_err() {
            break;
        }
    }
}

#[cfg(feature = "tokio")]
async fn task(fd: AsyncFd<std::os::fd::OwnedFd>, device: Weak<dyn Served>) {
    while let Some(shared) = device.upgrade() {
        let timeout = shared.serve();
        drop(shared);
        let readable = async { fd.readable().await.map(|mut guard| guard.clear_ready()) };
        let waited = match timeout {
            None => readable.await,
            Some(timeout) => time::timeout(timeout, readable).await.unwrap_or(Ok(())),
        };
        if waited.is_err() {
            break;
        }
    }
}
