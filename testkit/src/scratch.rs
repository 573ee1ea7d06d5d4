//! A directory of a test's own, in memory.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// A directory in memory that goes with the test. It is not made: a node makes its own.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Another one than all others of this machine.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ironverbs-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        Self(Path::new("/dev/shm").join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
