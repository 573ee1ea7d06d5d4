//! The node's lock file: it shows which parties are alive, and holds the lock on changes to the node.
//!
//! Byte 0 is the node's lock; byte `n` is held by party `n` as long as it lives. These are POSIX record locks: they are released when the
//! last thread of a process exits, are not inherited by children, and work across PID namespaces. They are also released when the process
//! closes any descriptor of the file, so it is opened once and never closed.
//!
//! A process may be stopped while it holds the node's lock (SIGSTOP, a debugger, a frozen cgroup), possibly forever. A process that waits
//! for the lock gets an error within a second; a process that is leaving the node leaves without it: its work is done by the process that
//! cleans up after it.

use super::{NodeError, data, holder::Holder, party_set::PARTIES, sys};
use ::sync::Kept;
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Name of the file in the node's directory.
const NAME: &str = "parties";

/// Time limit of a wait for the node lock if its holder is stopped.
const PATIENCE_WITH_STOPPED: Duration = Duration::from_millis(700);
/// Time limit of a wait for any other holder. Cleaning up after thousands of programs on a busy machine takes seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// Total time limit of a wait, across successive holders.
const PATIENCE_WITH_ALL: Duration = Duration::from_secs(60);
/// Interval at which a waiting thread checks the holder.
const LOOK: Duration = Duration::from_millis(100);
/// Between two tries a thread sleeps for this part of the time it has waited, within these bounds. Otherwise hundreds of programs that
/// start at once would starve the holder.
const PART: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(30);

/// The lock file of one node, as this process sees it.
pub struct LockFile {
    file: Kept<File>,
    id: (u64, u64, u32),
    dir: PathBuf,
    /// Record locks do not exclude threads of one process: true while a thread of this process holds or requests the node's lock.
    threads: Mutex<bool>,
    free: Condvar,
    /// A holder that this process no longer waits for.
    given_up: Mutex<Option<u32>>,
    /// Slots that this process holds, on this node or on an earlier one in the same directory; record locks do not report those.
    held: Mutex<BTreeSet<u16>>,
}

static OPEN: Mutex<Vec<&'static LockFile>> = Mutex::new(Vec::new());

/// The byte of a slot.
fn byte(slot: u16) -> sys::Bytes {
    (slot.into(), 1)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LockFile {
    /// Opens the lock file in `dir`, creates it if missing, and takes the node's lock. A reset that went first may have removed the file that
    /// was waited for.
    pub fn open_locked(dir: &Path) -> Result<(&'static Self, NodeLock), NodeError> {
        loop {
            let file = Self::open_with(dir, true)?;
            let lock = file.lock()?;
            if file.is_of(dir) {
                return Ok((file, lock));
            }
        }
    }

    /// True if `dir` has this file, and no other in its place.
    fn is_of(&self, dir: &Path) -> bool {
        data::id(&dir.join(NAME)) == Some((self.id.0, self.id.1))
    }

    /// Removes the file from `dir`, for the holder of its lock, if no program lives on the node.
    pub fn remove(&self, dir: &Path, _lock: &NodeLock) {
        if self.is_of(dir) {
            let _ = fs::remove_file(dir.join(NAME));
        }
    }

    /// Opens the lock file in `dir`, which must exist.
    pub fn existing(dir: &Path) -> Result<&'static Self, NodeError> {
        Self::open_with(dir, false)
    }

    fn open_with(dir: &Path, create: bool) -> Result<&'static Self, NodeError> {
        let path = dir.join(NAME);
        let failed = || NodeError::system(format!("open {}", path.display()));
        let mut open = locked(&OPEN);
        // Opening and closing the file again would release this process's locks, so check whether it is already open.
        let known = data::id(&path).map(|(device, inode)| (device, inode, std::process::id()));
        // A program that closed all its descriptors begins anew.
        if let Some(known) = open.iter().find(|f| Some(f.id) == known && f.is_open()) {
            return Ok(known);
        }
        let file = match create {
            true => data::open_or_make(&path),
            false => data::open(&path, OpenOptions::new().read(true).write(true)),
        };
        let file = file.map_err(failed())?;
        let meta = file.metadata().map_err(failed())?;
        let id = (meta.dev(), meta.ino(), std::process::id());
        let file = Kept::in_place(file).map_err(failed())?;
        let lock: &'static Self = Box::leak(Box::new(Self {
            file,
            id,
            dir: dir.into(),
            threads: Mutex::default(),
            free: Condvar::new(),
            given_up: Mutex::default(),
            held: Mutex::default(),
        }));
        open.push(lock);
        Ok(lock)
    }

    /// Acquires the node's lock. Waits at most a second for a stopped holder.
    pub fn lock(&'static self) -> Result<NodeLock, NodeError> {
        let begin = Instant::now();
        let ours = self.enter(begin)?;
        self.wait(begin)?;
        *locked(&self.given_up) = None;
        Ok(NodeLock { ours })
    }

    /// Excludes the other threads of this process.
    fn enter(&'static self, begin: Instant) -> Result<Entered, NodeError> {
        let mut taken = locked(&self.threads);
        while *taken {
            let left = PATIENCE_WITH_ALL.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let holder = Holder::of_ourselves();
                return Err(NodeError::Held { dir: self.dir.clone(), holder });
            }
            taken = self.free.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Ok(Entered(self))
    }

    /// Waits for other processes, and acquires the lock.
    fn wait(&self, begin: Instant) -> Result<(), NodeError> {
        let mut looked = begin;
        // The process that holds it, and since when.
        let mut holding: Option<(u32, Instant)> = None;
        loop {
            let step = || NodeError::system("lock the adapter");
            if self.file.get().and_then(|file| sys::lock_range(file, byte(0), true)).map_err(step())? {
                return Ok(());
            }
            let now = Instant::now();
            if holding.is_none() || now - looked >= LOOK {
                looked = now;
                if let Some(pid) = self.holder(0) {
                    let since = holding.filter(|(before, _)| *before == pid).map_or(now, |(_, since)| since);
                    holding = Some((pid, since));
                    self.look_at(Holder::of(pid), now - since, now - begin)?;
                }
            }
            std::thread::sleep((begin.elapsed() / PART).clamp(SHORTEST_NAP, LONGEST_NAP));
        }
    }

    /// Fails if there is no point in waiting longer for `holder`, which has held the lock for `held`.
    fn look_at(&self, holder: Holder, held: Duration, waited: Duration) -> Result<(), NodeError> {
        let mut given_up = locked(&self.given_up);
        // Closing a device acquires the lock dozens of times; only the first wait is long.
        let known = *given_up == Some(holder.pid);
        let hopeless = match holder.stopped {
            Some(_) => known || held >= PATIENCE_WITH_STOPPED,
            // A holder in another PID namespace may be stopped without this being visible. A visible holder is not stopped, or no longer.
            None => {
                let patience = if known && holder.pid == 0 { LOOK } else { PATIENCE };
                held >= patience || waited >= PATIENCE_WITH_ALL
            }
        };
        if !hopeless {
            return Ok(());
        }
        *given_up = Some(holder.pid);
        Err(NodeError::Held { dir: self.dir.clone(), holder })
    }

    /// Holds the byte of party `slot` for the life of this process. Returns false if it is already held.
    pub fn begin_life(&self, slot: u16) -> Result<bool, NodeError> {
        let mut held = locked(&self.held);
        if held.contains(&slot) {
            return Ok(false);
        }
        let got = self.file.get().and_then(|file| sys::lock_range(file, byte(slot), true));
        let got = got.map_err(NodeError::system("lock a place on the adapter"))?;
        if got {
            held.insert(slot);
        }
        Ok(got)
    }

    /// Releases the byte of party `slot`.
    pub fn end_life(&self, slot: u16) {
        let mut held = locked(&self.held);
        self.unlock(slot);
        held.remove(&slot);
    }

    fn unlock(&self, slot: u16) {
        if let Ok(file) = self.file.get() {
            sys::unlock_range(file, byte(slot));
        }
    }

    /// True if the file is still open. A program that closes all its descriptors also closes this one, and its locks are gone.
    pub fn is_open(&self) -> bool {
        self.file.get().is_ok()
    }

    /// PID of the other process that holds the byte of `slot`; 0 if it is hidden by another PID namespace.
    pub fn holder(&self, slot: u16) -> Option<u32> {
        // Unknown: no party is taken for dead.
        self.file.get().and_then(|file| sys::range_holder(file, byte(slot))).unwrap_or(Some(0))
    }

    /// True if another process is alive on the node: one system call for all slots.
    pub fn is_lived_on(&self) -> bool {
        let holder = self.file.get().and_then(|file| sys::range_holder(file, (1, PARTIES as i64 - 1)));
        holder.is_ok_and(|holder| holder.is_some())
    }

    /// PIDs of the other processes that are alive on the node, as from [`holder`](Self::holder).
    pub fn holders(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        if self.is_lived_on() {
            pids.extend((1..PARTIES as u16).filter_map(|slot| self.holder(slot)));
        }
        pids
    }
}

/// Excludes the other threads of this process.
struct Entered(&'static LockFile);

impl Drop for Entered {
    fn drop(&mut self) {
        *locked(&self.0.threads) = false;
        self.0.free.notify_one();
    }
}

/// The right to change the node: its parties, its arena and its openers. It is released by the call that holds it, even if that panics, and
/// at the latest when the process exits.
pub struct NodeLock {
    ours: Entered,
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        self.ours.0.unlock(0);
    }
}
