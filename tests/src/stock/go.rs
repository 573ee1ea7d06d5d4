//! Third-party programs written in Go.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// The folders in which to look: those of `scripts/go-programs.sh` and those in `CNI_PATH`.
pub struct GoPrograms(Vec<PathBuf>);

impl GoPrograms {
    /// Looks for `names` in `sets` of that script. Returns `None` and prints a line if one is missing.
    pub fn with(sets: &[&str], names: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/go-programs.sh");
        let made = |set: &&str| {
            let path = Command::new("sh").arg(&script).args(["path", set]).output().expect("sh").stdout;
            PathBuf::from(String::from_utf8_lossy(&path).trim())
        };
        let mut folders: Vec<_> = sets.iter().map(made).collect();
        folders.extend(env::var_os("CNI_PATH").iter().flat_map(env::split_paths));
        let this = Self(folders);
        let missing = names.iter().find(|name| this.find(name).is_none());
        if let Some(name) = missing {
            println!("skipped: no {name} in {:?} (scripts/go-programs.sh build, or CNI_PATH)", this.0);
        }
        missing.is_none().then_some(this)
    }

    /// Returns the path of a program, or of a file that came with it.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).find(|program| program.exists())
    }

    /// Returns the folders in the format of CNI_PATH.
    pub fn path(&self) -> OsString {
        env::join_paths(&self.0).expect("folders without colons")
    }
}
