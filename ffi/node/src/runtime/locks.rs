//! The node's lock file: who lives, and who may change the node.
//!
//! Byte 0 is the node's lock; byte `n` is held by party `n` as long as it lives. These are POSIX record locks: they go
//! when the last thread of a process is gone, are not inherited by children, and know no PID namespaces. They also go
//! when the process closes any descriptor of the file, so it is opened once and never closed.

use super::{NodeError, sys};
use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The lock file of one node, as this process sees it.
pub struct LockFile {
    file: File,
    id: (u64, u64, u32),
    /// Record locks do not exclude threads of one process.
    threads: Mutex<()>,
    /// Places this process holds, on this node or on one that was here before it: record locks do not tell.
    held: Mutex<BTreeSet<u8>>,
}

static OPEN: Mutex<Vec<&'static LockFile>> = Mutex::new(Vec::new());

impl LockFile {
    /// The lock file in `dir`, made if there is none.
    pub fn open(dir: &Path) -> Result<&'static Self, NodeError> {
        let path = dir.join("parties");
        let failed = || NodeError::system(format!("open {}", path.display()));
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let id_of = |meta: std::fs::Metadata| (meta.dev(), meta.ino(), std::process::id());
        // Opening and closing it once more would end our life: look before.
        if let Ok(meta) = std::fs::metadata(&path) {
            let id = id_of(meta);
            if let Some(known) = open.iter().find(|f| f.id == id) {
                return Ok(known);
            }
        }
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed())?;
        let id = id_of(file.metadata().map_err(failed())?);
        let lock: &'static Self =
            Box::leak(Box::new(Self { file, id, threads: Mutex::default(), held: Mutex::default() }));
        open.push(lock);
        Ok(lock)
    }

    /// Takes the node's lock.
    pub fn lock(&'static self) -> Result<NodeLock, NodeError> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        sys::lock_byte(&self.file, 0, true).map_err(NodeError::system("lock the node"))?;
        Ok(NodeLock { file: self, _threads: threads })
    }

    /// Holds the byte of party `slot` for the life of this process. False: it is held already.
    pub fn begin_life(&self, slot: u8) -> Result<bool, NodeError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains(&slot) {
            return Ok(false);
        }
        let got = sys::lock_byte(&self.file, slot.into(), false)
            .map_err(NodeError::system("lock a place on the node"))?;
        if got {
            held.insert(slot);
        }
        Ok(got)
    }

    /// Gives the byte back.
    pub fn end_life(&self, slot: u8) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        sys::unlock_byte(&self.file, slot.into());
        held.remove(&slot);
    }

    /// The process that holds the byte of `slot`, unless that is us: its pid, 0 if it is hidden from us.
    pub fn holder(&self, slot: u8) -> Option<u32> {
        sys::byte_holder(&self.file, slot.into())
    }
}

/// The right to change the node: parties, arena, who opened what. Ends with the process at the latest.
pub struct NodeLock {
    file: &'static LockFile,
    _threads: MutexGuard<'static, ()>,
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        sys::unlock_byte(&self.file.file, 0);
    }
}
