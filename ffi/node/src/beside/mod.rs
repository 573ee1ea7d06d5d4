//! Two adapters that a link joins directly: programs on one put their frames into the receive rings of the other and run the receivers, as
//! between functions of one adapter, without a thread of the link.
//!
//! The party that holds both uplinks records in each adapter's file which the other is. A program that opens a function becomes a party of
//! the other adapter as well, if it may open it, until it has closed all functions of both. Frames of other programs (as in containers),
//! groups, address discovery and raw packets leave by the uplink, and no frame overtakes an earlier one there.

mod frames;
mod open;

use super::{core::Core, file::BesideSlot};
use std::{
    any::Any,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicUsize, Ordering::*},
    },
};

/// Taken to open or close an adapter beside another.
static CHANGES: Mutex<()> = Mutex::new(());

fn change() -> MutexGuard<'static, ()> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The adapter beside one that this process has open.
#[derive(Default)]
pub struct Beside {
    /// Open functions of this adapter.
    users: AtomicUsize,
    /// The other adapter. Its place among the parties cannot be given up while a thread reads this. Calls never wait for it: they may be
    /// in a signal handler, or in one of those threads.
    other: RwLock<Option<Other>>,
}

/// An adapter that this process has open.
#[derive(Clone)]
struct Other {
    core: Arc<Core>,
    /// Keeps it open.
    _node: Arc<dyn Any + Send + Sync>,
}

impl Beside {
    fn is_set(&self) -> bool {
        self.other.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, other: Option<Other>) -> Option<Other> {
        std::mem::replace(&mut *self.other.write().unwrap_or_else(PoisonError::into_inner), other)
    }
}

/// An open function of an adapter. While there is one, the adapter beside it stays open.
pub struct User(Arc<Core>);

impl Drop for User {
    fn drop(&mut self) {
        // Locks and threads belong to the parent of a forked child.
        if !self.0.is_ours() {
            return;
        }
        let beside = &self.0.beside;
        let changes = change();
        if beside.users.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        let other = beside.other.read().unwrap_or_else(PoisonError::into_inner).clone();
        let unused = other.filter(|other| other.core.beside.users.load(Relaxed) == 0);
        let gone = unused.map(|other| (beside.set(None), other.core.beside.set(None), other));
        drop(changes);
        // Closing an adapter takes locks and waits for its thread.
        drop(gone);
    }
}

impl BesideSlot {
    fn id(&self) -> (u64, u64) {
        let inode = self.file[1].load(Acquire);
        (self.file[0].load(Relaxed), inode)
    }

    /// The other adapter's file and directory.
    fn read(&self) -> Option<((u64, u64), PathBuf)> {
        let id = self.id();
        let bytes: Vec<u8> = self.dir.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let len = bytes.iter().position(|byte| *byte == 0)?;
        (id.1 != 0).then(|| (id, Path::new(OsStr::from_bytes(&bytes[..len])).into()))
    }

    fn set(&self, (device, inode): (u64, u64), dir: &Path) {
        self.clear();
        let mut bytes = dir.as_os_str().as_bytes().to_vec();
        // At least one zero ends the path. Programs on an adapter with a longer one use the uplink.
        if bytes.len() >= size_of_val(&self.dir) {
            return;
        }
        bytes.resize(size_of_val(&self.dir), 0);
        for (word, bytes) in self.dir.iter().zip(bytes.chunks_exact(size_of::<u64>())) {
            word.store(u64::from_ne_bytes(hwspec::layout::prefix(bytes)), Relaxed);
        }
        self.file[0].store(device, Relaxed);
        self.file[1].store(inode, Release);
    }

    fn clear(&self) {
        self.file[1].store(0, Release);
        self.passed.store(0, Relaxed);
    }
}

impl Core {
    /// Records that a link joins the adapter of `other` to this one.
    pub fn set_beside(&self, other: &Self) {
        self.map.header().beside.set(other.map.id, &other.dir);
    }

    /// Records that no adapter is joined to this one any more.
    pub fn forget_beside(&self) {
        self.map.header().beside.clear();
    }

    /// True if a link joins the adapter of `other` to this one. False in virtual time, where every frame must take the link's time.
    fn is_joined(&self, other: &Self) -> bool {
        let names = |one: &Self, other: &Self| one.map.header().beside.id() == other.map.id;
        names(self, other) && names(other, self) && self.board().is_none() && other.board().is_none()
    }

    /// Number of frames that programs have delivered to the adapter beside this one.
    pub fn passed(&self) -> u64 {
        self.map.header().beside.passed.load(Relaxed)
    }

    /// The adapter beside this one, if it may get frames directly.
    fn beside(&self) -> Option<Open<'_>> {
        if self.map.header().beside.file[1].load(Relaxed) == 0 {
            return None;
        }
        self.known_beside().filter(|open| open.core().is_some_and(|other| self.is_joined(other)))
    }

    /// The adapter that is or was beside this one, if this process has it open.
    fn known_beside(&self) -> Option<Open<'_>> {
        let open = Open(self.beside.other.try_read().ok()?);
        let is_usable = open.core().is_some_and(|other| other.is_ours() && !other.is_lost());
        is_usable.then_some(open)
    }
}

/// The adapter beside one, which stays open as long as this exists.
struct Open<'a>(RwLockReadGuard<'a, Option<Other>>);

impl Open<'_> {
    fn core(&self) -> Option<&Core> {
        self.0.as_ref().map(|other| &*other.core)
    }
}
