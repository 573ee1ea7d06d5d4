//! Temporary files and directories of a test, in memory.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A file or directory in memory, removed with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A path that is unique on this machine and does not exist: a node creates its own directory.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self::named("d")
    }

    /// Like [`new`](Self::new), ending with `name`, for programs that take meaning from the name.
    pub fn named(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ironverbs-test-{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        Self(Path::new("/dev/shm").join(name))
    }

    /// Like [`new`](Self::new), and creates an empty directory.
    pub fn made() -> Self {
        let this = Self::new();
        std::fs::create_dir(&this.0).expect("a directory");
        this
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0).or_else(|_| std::fs::remove_file(&self.0));
    }
}
