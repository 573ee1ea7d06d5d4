//! Temporary directories of scenarios.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::Outcome;

/// A directory for sockets and captures, removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Deref for Scratch {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a new directory.
pub fn scratch(name: &str) -> Outcome<Scratch> {
    let dir = std::env::temp_dir().join(format!("ivg-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    Ok(Scratch(dir))
}
