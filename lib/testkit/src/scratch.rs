//! A place of a test's own, in memory.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A file or directory in memory that goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A path unlike all others of this machine, at which there is nothing: a node makes its own directory.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self::named("d")
    }

    /// As [`new`](Self::new), with `name` at its end, by which a program may tell what is wanted there.
    pub fn named(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ironverbs-test-{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        Self(Path::new("/dev/shm").join(name))
    }

    /// As [`new`](Self::new), and an empty directory is there.
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
