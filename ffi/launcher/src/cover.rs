//! Covers a directory of the launched program's view with a tmpfs, and keeps its old entries accessible.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;

use super::LaunchError;
use super::sys;

/// A directory covered by a tmpfs. Its old contents are accessible through an open descriptor.
pub struct Covered {
    at: PathBuf,
    old: OwnedFd,
    entries: Vec<(OsString, Kind)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Link,
    Dir,
    Other,
}

/// Covers the existing directory `at`. It is empty until entries are kept.
pub fn cover(at: &Path) -> Result<Covered, LaunchError> {
    let step = |what: &str| LaunchError::step(format!("{what} {}", at.display()));
    let mut entries = Vec::new();
    for entry in fs::read_dir(at).map_err(step("list"))? {
        let entry = entry.map_err(step("list"))?;
        // An entry that disappears in between is missing for the program, too.
        let Ok(kind) = entry.file_type() else { continue };
        let kind = match () {
            () if kind.is_symlink() => Kind::Link,
            () if kind.is_dir() => Kind::Dir,
            () => Kind::Other,
        };
        entries.push((entry.file_name(), kind));
    }
    let old = sys::open_path(at).map_err(step("open"))?;
    sys::mount_tmpfs(at).map_err(step("mount a tmpfs over"))?;
    Ok(Covered { at: at.to_path_buf(), old, entries })
}

/// Covers `path`. If it does not exist, covers its nearest existing parent, keeps the parent's entries and creates `path` in it.
pub fn cover_or_make(path: &Path) -> Result<Option<Covered>, LaunchError> {
    if path.is_dir() {
        return cover(path).map(Some);
    }
    let parent = path.ancestors().skip(1).find(|p| p.is_dir()).unwrap_or(Path::new("/"));
    if parent == Path::new("/") {
        let why = io::Error::from(io::ErrorKind::NotFound);
        return Err(LaunchError::step(format!("cover {}", path.display()))(why));
    }
    cover(parent)?.keep(|_, _| true)?;
    fs::create_dir_all(path).map_err(LaunchError::step(format!("create {}", path.display())))?;
    Ok(None)
}

impl Covered {
    /// Keeps the old entries for which `wanted` returns true, given the name and, for a symbolic link, its target. Links are kept as links,
    /// everything else as a recursive bind mount of the old entry.
    pub fn keep(&self, wanted: impl Fn(&OsStr, Option<&Path>) -> bool) -> Result<(), LaunchError> {
        for (name, kind) in &self.entries {
            let old = self.old_path().join(name);
            let target = if *kind == Kind::Link { fs::read_link(&old).ok() } else { None };
            let new = self.at.join(name);
            if !wanted(name, target.as_deref()) || fs::symlink_metadata(&new).is_ok() {
                continue;
            }
            match self.keep_one(*kind, &old, &new, target.as_deref()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(LaunchError::step(format!("keep {}", new.display()))(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn keep_one(&self, kind: Kind, old: &Path, new: &Path, target: Option<&Path>) -> io::Result<()> {
        match (kind, target) {
            (Kind::Link, None) => Ok(()),
            (Kind::Link, Some(target)) => symlink(target, new),
            (Kind::Dir, _) => {
                fs::create_dir(new)?;
                bind(old, new)
            }
            (Kind::Other, _) => {
                fs::File::create_new(new)?;
                bind(old, new)
            }
        }
    }

    /// A path of the covered directory for this process.
    pub fn old_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.old.as_raw_fd()))
    }

    /// Makes the cover read-only. Entries kept by bind mounts keep their own setting.
    pub fn seal(&self) -> Result<(), LaunchError> {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID;
        sys::mount(None, &self.at, flags)
            .map_err(LaunchError::step(format!("make {} read-only", self.at.display())))
    }
}

/// Recursively binds `old` to `new`.
pub fn bind(old: &Path, new: &Path) -> io::Result<()> {
    sys::mount(Some(old), new, MsFlags::MS_BIND | MsFlags::MS_REC)
}

/// True if this kernel's tmpfs lists the newest entry first, as most do. Tested in `dir`.
pub fn newest_first(dir: &Path) -> io::Result<bool> {
    let (one, two) = (dir.join(".first"), dir.join(".second"));
    let tried = || {
        fs::create_dir(&one)?;
        fs::create_dir(&two)?;
        let first = fs::read_dir(dir)?.next().transpose()?;
        Ok(first.is_none_or(|entry| entry.file_name() == ".second"))
    };
    let found = tried();
    let _ = fs::remove_dir(&two);
    let _ = fs::remove_dir(&one);
    found
}
