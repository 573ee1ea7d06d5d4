//! Programs that are written in Go, as others build them.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// Where they are: what `scripts/go-programs.sh` built, and the folders that `CNI_PATH` names.
pub struct GoPrograms(Vec<PathBuf>);

impl GoPrograms {
    /// Looks for `names` in `sets` of that script. `None`, and a line that says so, if one of them is missing.
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

    /// The program's file, or that of something that came with it.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).find(|program| program.exists())
    }

    /// The folders, as CNI_PATH names them.
    pub fn path(&self) -> OsString {
        env::join_paths(&self.0).expect("folders without colons")
    }
}
