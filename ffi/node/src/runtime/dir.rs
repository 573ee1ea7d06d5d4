//! The node's directory: the caller's own, in memory, with room.

use super::NodeError;
use crate::launcher::dir as launcher;
use std::path::{Path, PathBuf};

/// What must be free in the file system for a node to be made.
pub const ROOM_TO_CREATE: u64 = 16 << 20;
/// What must stay free when a function is opened or a driver asks for memory: for what gets its pages when it is first touched, and
/// for the tables of those who have a function open already.
pub const RESERVE: u64 = 4 << 20;

/// Makes `dir` ready to hold a node; returns its absolute path.
pub fn claim(dir: &Path) -> Result<PathBuf, NodeError> {
    let full = launcher::claim(dir).map_err(|e| NodeError::Dir(e.to_string()))?;
    in_memory(&full)?;
    Ok(full)
}

/// The absolute path of an existing node directory of the caller.
pub fn existing(dir: &Path) -> Result<PathBuf, NodeError> {
    match std::fs::canonicalize(dir) {
        Ok(full) => {
            // Under the name it was called by, which may be a link, and as what that leads to.
            launcher::check(dir)
                .and_then(|()| launcher::check(&full))
                .map_err(|e| NodeError::Dir(e.to_string()))?;
            Ok(full)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(NodeError::Missing(dir.into())),
        Err(e) => Err(NodeError::Dir(format!("node directory {}: {e}", dir.display()))),
    }
}

fn in_memory(dir: &Path) -> Result<(), NodeError> {
    match launcher::in_memory(dir) {
        true => Ok(()),
        false => Err(NodeError::Dir(format!(
            "node directory {}: it lies on a disk, expected a file system in memory such as /dev/shm",
            dir.display()
        ))),
    }
}

/// Fails unless `need` bytes are free where `dir` is.
pub fn room(dir: &Path, need: u64) -> Result<(), NodeError> {
    match launcher::free_bytes(dir) {
        Some(free) if free < need => Err(no_room(dir, need)),
        _ => Ok(()),
    }
}

/// The error for who needed `need` bytes where `dir` is and did not get them.
pub fn no_room(dir: &Path, need: u64) -> NodeError {
    let free = launcher::free_bytes(dir).unwrap_or(0);
    NodeError::NoRoom { dir: dir.into(), need: need >> 10, free: free >> 10 }
}

/// What a program says that lost a page of the node in `dir`.
pub fn lost_notice(dir: &Path) -> String {
    format!(
        "ironverbs: no room left in shared memory for the node in {}: this program has lost its devices\n",
        dir.display()
    )
}
