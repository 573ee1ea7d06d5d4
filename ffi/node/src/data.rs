//! Files of a node's directory. Any user or program with write access to the directory, such as programs in containers and members of a
//! group, may have replaced a file. So links are not followed, and anything that is not a regular file with a single name is refused.

use super::dir;
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

/// Opens the file at `path` in a node's directory with `options`.
///
/// # Errors
/// It cannot be opened, or it is not a regular file with this one name that belongs to the directory's owner or group.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let refused =
        |found: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("expected a file, found {found}"));
    // Non-blocking: opening a pipe would wait for its other end.
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP) => refused("a symbolic link"),
        Some(libc::ENXIO) => refused("a pipe or socket"),
        _ => e,
    })?;
    let (meta, dir) = (file.metadata()?, fs::symlink_metadata(path.parent().unwrap_or(Path::new("/")))?);
    let owned = meta.uid() == dir.uid() || dir::is_shared(&dir) && meta.gid() == dir.gid();
    match () {
        () if !meta.is_file() => Err(refused("a pipe, socket, device or directory")),
        () if meta.nlink() > 1 => Err(refused("one with another name, too")),
        () if !owned => Err(refused(&format!("one of uid {}, gid {}", meta.uid(), meta.gid()))),
        () => Ok(file),
    }
}

/// Opens a file for reading and writing. A missing file is created, for the caller alone or for the group of a shared directory.
///
/// # Errors
/// As for [`open`].
pub fn open_or_make(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600))
}

/// Device and inode number of the file at `path`, if it exists.
pub fn id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::geteuid;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn nothing_but_a_file_of_the_directory_is_opened() {
        let dir = &testkit::Scratch::made().0;
        fs::create_dir(dir.join("folder")).unwrap();
        let (elsewhere, gone) = (dir.join("folder/elsewhere"), dir.join("folder/gone"));
        fs::write(&elsewhere, "as it was").unwrap();
        let at = |name: &str| dir.join(name);
        symlink(&elsewhere, at("link")).unwrap();
        symlink(&gone, at("dangling")).unwrap();
        fs::hard_link(&elsewhere, at("second")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (name, said) in [
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("second", "another name"),
            ("pipe", "a pipe"),
            ("socket", "socket"),
            ("folder", "directory"),
        ] {
            let error = open_or_make(&at(name)).unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
        if geteuid().is_root() {
            fs::write(at("foreign"), "").unwrap();
            chown(at("foreign"), Some(65534), None).unwrap();
            assert!(open_or_make(&at("foreign")).unwrap_err().to_string().contains("uid 65534"));
        }
        assert!(open_or_make(&at("new")).is_ok() && !gone.exists());
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "as it was");
        drop(socket);
        fs::remove_dir_all(dir).unwrap();
    }
}
