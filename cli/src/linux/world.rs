//! The folder that a guest starts from: its first programs, its command, and the paths of its files.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::quoted;
use crate::options::Linux;

/// Name prefix of all these folders, by which leftover ones are found.
const PREFIX: &str = "ironverbs-linux-";
/// Maximum path length: the longest socket path in it must fit into sun_path.
const LONGEST: usize = 80;

/// A guest's folder, removed on drop.
pub struct World {
    dir: PathBuf,
    /// Held as long as this process lives, so that the folder of a killed process can be recognized.
    _lock: Flock<File>,
}

impl World {
    pub fn new(linux: &Linux) -> Result<Self, String> {
        let place = std::env::temp_dir();
        sweep(&place);
        let dir = place.join(format!("{PREFIX}{}", std::process::id()));
        let cannot = |e: io::Error| format!("cannot make {}: {e}", dir.display());
        if !is_plain(&dir) || dir.as_os_str().len() > LONGEST {
            let dir = dir.display();
            return Err(format!(
                "cannot start from {dir}: expected at most {LONGEST} letters, digits or signs of ._-/ (TMPDIR)"
            ));
        }
        DirBuilder::new().mode(0o700).create(&dir).map_err(cannot)?;
        let lock = lock(&dir).map_err(cannot).and_then(|lock| {
            lock.ok_or_else(|| format!("cannot make {}: another process has it", dir.display()))
        })?;
        let world = Self { dir: dir.clone(), _lock: lock };
        world.fill(linux)?;
        Ok(world)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Tells the guest's scripts which kind of lines they have.
    pub fn set_terminal(&self, is_terminal: bool) -> Result<(), String> {
        let path = self.path("terminal");
        let write = if is_terminal { File::create(&path).map(drop) } else { Ok(()) };
        write.map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    fn fill(&self, linux: &Linux) -> Result<(), String> {
        let root = folder(&linux.root)?;
        if !root.join("bin/sh").exists() {
            return Err(format!("expected a root of Linux with a /bin/sh in {}, found none", root.display()));
        }
        let mut shares = Vec::new();
        for share in &linux.shares {
            shares.push(folder(share)?);
        }
        let write = || -> io::Result<()> {
            for name in ["uml", "dev", "stage", "shares", "in"] {
                fs::create_dir(self.path(name))?;
            }
            symlink(root, self.path("root"))?;
            for (number, share) in shares.iter().enumerate() {
                symlink(share, self.path(&format!("shares/{number}")))?;
            }
            self.script("init", include_bytes!("init.sh"))?;
            self.script("start", include_bytes!("start.sh"))?;
            fs::write(self.path("environment"), environment())?;
            fs::write(self.path("command"), command(&linux.command))
        };
        write().map_err(|e| format!("cannot write to {}: {e}", self.dir.display()))
    }

    fn script(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let how = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(self.path(name));
        how?.write_all(text)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// True if the path can be used in a kernel's command line.
fn is_plain(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(byte))
}

/// The absolute path of a folder.
fn folder(path: &Path) -> Result<PathBuf, String> {
    let full = fs::canonicalize(path).map_err(|e| format!("{}: {e}", path.display()))?;
    match full.is_dir() {
        true => Ok(full),
        false => Err(format!("expected a folder, found a file: {}", path.display())),
    }
}

/// Locks the folder `dir`; `None` if another process holds the lock.
fn lock(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join("lock"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
        Err((_, e)) => Err(e.into()),
    }
}

/// Removes folders of killed processes.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_ours = path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
        // A folder without a lock is still being created.
        if is_ours && path.join("lock").exists() && matches!(lock(&path), Ok(Some(_))) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Exports for `start` to read: the command gets the user's terminal type, language and time zone.
fn environment() -> Vec<u8> {
    let mut text = Vec::new();
    let mut say = |name: &str, value: &OsStr| {
        text.extend_from_slice(format!("export {name}=").as_bytes());
        text.extend_from_slice(&quoted(value));
        text.push(b'\n');
    };
    for name in ["TERM", "LANG", "LC_ALL", "TZ", "NO_COLOR"] {
        if let Some(value) = std::env::var_os(name) {
            say(name, &value);
        }
    }
    if let Ok(dir) = std::env::current_dir() {
        say("IRONVERBS_CWD", dir.as_os_str());
    }
    text
}

/// The command for a shell to run; a shell if `words` is empty.
fn command(words: &[std::ffi::OsString]) -> Vec<u8> {
    if words.is_empty() {
        return b"command -v bash >/dev/null && exec bash\nexec sh\n".to_vec();
    }
    let mut text = b"exec".to_vec();
    for word in words {
        text.push(b' ');
        text.extend_from_slice(&quoted(word));
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let place = &testkit::Scratch::new().0;
        let folder = |name: &str| place.join(format!("{PREFIX}{name}"));
        for name in ["dead", "living", "new"] {
            fs::create_dir_all(folder(name)).unwrap();
        }
        drop(lock(&folder("dead")).unwrap());
        let held = lock(&folder("living")).unwrap();
        assert!(held.is_some() && lock(&folder("living")).unwrap().is_none());
        sweep(place);
        let there = ["dead", "living", "new"].map(|name| folder(name).exists());
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn a_command_is_run_as_it_was_given() {
        let words = ["ib write", "-s", "it's"].map(Into::into);
        assert_eq!(command(&words), b"exec 'ib write' '-s' 'it'\\''s'\n");
    }

    #[test]
    fn a_path_that_the_kernel_would_take_apart_is_known() {
        assert!(is_plain(Path::new("/tmp/ironverbs-linux-1")));
        for path in ["/tmp/a b", "/tmp/a:b", "/tmp/a,b", "/tmp/\"", "/tmp/é"] {
            assert!(!is_plain(Path::new(path)), "{path}");
        }
    }
}
