//! Interrupts: from a vector of a function to the eventfds of its listeners.
//!
//! A function has fewer vectors than it can have openers, so several openers may listen to one vector: it wakes all of them, and those
//! without an event find none. The node's file counts how often each vector fired, and every program compares the count with its last known
//! value, so a listener cannot take an interrupt away from another.

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
    /// By function and vector. Locked while a vector is signaled, because the number of a closed descriptor may be reused.
    lines: RwLock<BTreeMap<(u8, u16), Line>>,
    listeners: AtomicU64,
}

/// A vector that this process listens to.
pub struct Line {
    /// The fire count of the vector when its eventfds were last signaled.
    pub seen: AtomicU32,
    /// The eventfd of each listener.
    pub fds: Vec<(Listener, Kept)>,
}

/// One of the openers in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener(u64);

impl Interrupts {
    /// Creates a listener.
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
