//! A temporary node that is removed when the process exits.

use node::{Node, NodeOptions};
use std::path::{Path, PathBuf};

/// The directory of a node of this process.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory for a node, in memory. A process that crashes leaves it behind: `scripts/fuzz.sh` sets the parent
    /// (`IRONVERBS_FUZZ_DIR`) and cleans up.
    pub fn new(name: &str) -> Self {
        let within = std::env::var_os("IRONVERBS_FUZZ_DIR").unwrap_or_else(|| "/dev/shm".into());
        let dir = Path::new(&within).join(format!("ironverbs-fuzz-{}-{name}", std::process::id()));
        at_exit::remove(&dir);
        Self(dir)
    }

    /// Path of the directory.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Makes a node with two VFs in the directory. The node is closed when this returns.
    pub fn make(&self, options: NodeOptions) {
        let options = NodeOptions { vfs: Some(2), ..options };
        drop(Node::open_or_create(&self.0, &options).expect("a node"));
    }
}

/// Cleanup at exit: libFuzzer ends the process by exit(3), without running destructors.
#[allow(unsafe_code)]
mod at_exit {
    use std::{
        path::{Path, PathBuf},
        sync::Mutex,
    };

    static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    extern "C" fn remove_all() {
        let directories = DIRECTORIES.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
        directories.iter().for_each(|dir| drop(std::fs::remove_dir_all(dir)));
    }

    /// Removes `dir` when the process exits.
    pub fn remove(dir: &Path) {
        let Ok(mut all) = DIRECTORIES.lock() else { return };
        if all.is_empty() {
            // SAFETY: the function only removes files and does not unwind.
            unsafe { libc::atexit(remove_all) };
        }
        all.push(dir.into());
    }
}
