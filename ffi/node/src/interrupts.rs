//! Interrupts: from a vector of a function to the eventfds of those who listen to it.
//!
//! A function has fewer vectors than it may have openers, so several may listen to one: a vector that fires wakes all of
//! them, and those for whom there is no event find none. How often a vector fired is counted in the node's file, and
//! every program compares with what it last saw: no listener can take an interrupt away from another.

use super::sys;
use ::sync::Kept;
use std::{
    collections::BTreeMap,
    os::fd::AsRawFd,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU32, AtomicU64, Ordering::*},
    },
};

/// The interrupt vectors that a process listens to.
#[derive(Default)]
pub struct Interrupts {
    /// By function and vector. Locked while a vector is signaled, since the number of a closed descriptor may be used
    /// again.
    lines: RwLock<BTreeMap<(u8, u16), Line>>,
    listeners: AtomicU64,
}

/// A vector that this process listens to.
pub struct Line {
    /// How often the vector had fired when its eventfds were last signaled.
    pub seen: AtomicU32,
    /// One for each listener.
    pub fds: Vec<(Listener, Kept)>,
}

/// One of the openers in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener(u64);

impl Interrupts {
    /// A new listener.
    pub fn listener(&self) -> Listener {
        Listener(self.listeners.fetch_add(1, Relaxed))
    }

    pub fn read(&self) -> RwLockReadGuard<'_, BTreeMap<(u8, u16), Line>> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<(u8, u16), Line>> {
        self.lines.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    pub fn signal(&self) {
        self.fds.iter().filter_map(|(_, fd)| fd.get().ok()).for_each(|fd| sys::signal(fd.as_raw_fd()));
    }
}
