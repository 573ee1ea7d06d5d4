//! Programs that are written in Go, as others build them.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// Where they are: what `scripts/cni.sh` built, and the folders that `CNI_PATH` names.
pub struct GoPrograms(Vec<PathBuf>);

impl GoPrograms {
    /// Looks for `names`. `None`, and a line that says so, if one of them is missing.
    pub fn with(names: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cni.sh");
        let made = Command::new("sh").arg(script).arg("path").output().expect("sh").stdout;
        let mut folders = vec![PathBuf::from(String::from_utf8_lossy(&made).trim())];
        folders.extend(env::var_os("CNI_PATH").iter().flat_map(env::split_paths));
        let this = Self(folders);
        let missing = names.iter().find(|name| this.find(name).is_none());
        if let Some(name) = missing {
            println!("skipped: no {name} in {:?} (scripts/cni.sh build, or CNI_PATH)", this.0);
        }
        missing.is_none().then_some(this)
    }

    /// The program's file.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).find(|program| program.is_file())
    }

    /// The folders, as CNI_PATH names them.
    pub fn path(&self) -> OsString {
        env::join_paths(&self.0).expect("folders without colons")
    }
}
