//! The directory of a node: a user's default directory, and the checks before a directory is used.

use nix::{
    sys::statfs::{FsType, Statfs, TMPFS_MAGIC, statfs},
    unistd::{Gid, getegid, geteuid, getgroups},
};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};

use super::{NodeError, data};

const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// Size of a file system in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Total.
    pub total: u64,
    /// Free to the caller.
    pub free: u64,
}

/// The reason why a directory cannot hold a node.
#[derive(Debug, thiserror::Error)]
#[error("adapter directory {dir}: {why}")]
pub struct DirError {
    /// The directory as the user named it.
    pub dir: String,
    /// The reason.
    pub why: String,
}

/// The calling user's default node directory: in the login's runtime directory, else in `/dev/shm`, else in `/tmp`; the first one that is
/// on a memory file system.
pub fn default_dir() -> PathBuf {
    let uid = geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let login = PathBuf::from(format!("/run/user/{uid}"));
    for dir in runtime.into_iter().chain([login]) {
        if dir.is_absolute() && in_memory(&dir) && owner(&dir) == Some(uid) {
            return dir.join("ironverbs");
        }
    }
    let shm = Path::new("/dev/shm");
    let base = if in_memory(shm) { shm } else { Path::new("/tmp") };
    base.join(format!("ironverbs-{uid}"))
}

/// A directory private to the calling user, for sockets by which the user's processes find each other: `/run/ironverbs` for root, or a
/// directory in the login's runtime directory or on a memory file system. It is created if missing.
///
/// # Errors
/// The reason why the last of these directories cannot be used either.
pub fn own() -> Result<PathBuf, DirError> {
    let uid = geteuid().as_raw();
    let login = PathBuf::from(format!("/run/user/{uid}"));
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).into_iter().chain([login]);
    let of_login = runtime
        .filter(|dir| dir.is_absolute() && owner(dir) == Some(uid))
        .map(|dir| dir.join("ironverbs-own"));
    // Only root can create a directory in /run. Root of a container engine's user namespace cannot.
    let of_root = (uid == 0).then(|| PathBuf::from("/run/ironverbs"));
    let last = PathBuf::from(format!("/dev/shm/ironverbs-{uid}-own"));
    of_root.into_iter().chain(of_login).find_map(|dir| claim(&dir).ok()).map_or_else(|| claim(&last), Ok)
}

/// Mode of a directory that its group shares, with the setgid bit, which gives new files the directory's group.
const SHARED: u32 = 0o2770;
/// The files of a node. The first is created anew with each node ([`new_file`]).
const FILES: [&str; 4] = ["adapter", "parties", "ports", "userns"];

/// Prepares `dir` to hold a node: creates it with mode 0700 if it is missing, and refuses a directory that the caller may not use
/// ([`check`]). Returns its absolute path with links resolved.
pub fn claim(dir: &Path) -> Result<PathBuf, DirError> {
    let name = || dir.display().to_string();
    if dir.as_os_str().is_empty() {
        return Err(DirError { dir: name(), why: "the name is empty".into() });
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(DirError { dir: name(), why: format!("cannot create it: {e}") }),
    }
    check(dir)?;
    let full = fs::canonicalize(dir).map_err(|e| DirError { dir: name(), why: e.to_string() })?;
    check(&full)?;
    // The path becomes a line of the text file by which the provider finds its node, and part of RDMAV_DRIVERS.
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && !":;".contains(c);
    if !full.to_str().is_some_and(|path| path.chars().all(fits)) {
        let why =
            format!("{:?} is not a path libibverbs' lists of drivers can hold: no blanks, ':' or ';'", full);
        return Err(DirError { dir: name(), why });
    }
    Ok(full)
}

/// Permits the users of `group` to use the node in `dir`. The directory is created if missing.
///
/// # Errors
/// The caller is not root, or the directory is not the caller's.
pub fn share(dir: &Path, group: u32) -> Result<(), DirError> {
    if !geteuid().is_root() {
        let why = format!("only root can share an adapter, you are uid {}", geteuid());
        return Err(DirError { dir: dir.display().to_string(), why });
    }
    let full = claim(dir)?;
    let shared = || -> io::Result<()> {
        // Creates the other files now: files created later would for a moment be accessible only to their creator.
        for name in &FILES[1..] {
            data::open_or_make(&full.join(name))?;
        }
        for name in FILES.iter().filter(|name| data::id(&full.join(name)).is_some()) {
            let file = data::open(&full.join(name), fs::OpenOptions::new().read(true).write(true))?;
            fchown(&file, None, Some(group))?;
            file.set_permissions(fs::Permissions::from_mode(0o660))?;
        }
        chown(&full, None, Some(group))?;
        fs::set_permissions(&full, fs::Permissions::from_mode(SHARED))
    };
    shared().map_err(|e| DirError {
        dir: full.display().to_string(),
        why: format!("cannot share it with group {group}: {e}"),
    })
}

/// True if a directory belongs to root and is shared on purpose: it is writable by its group, new files inherit the group, and others have
/// no access.
pub(crate) fn is_shared(dir: &fs::Metadata) -> bool {
    is_root(dir.uid()) && dir.mode() & 0o2077 == SHARED & 0o2077
}

/// True if `uid` is root. In a user namespace without root, as `run` creates for other users, root and all unmapped users share one number;
/// there the group's permissions, which the kernel checks, have to suffice.
fn is_root(uid: u32) -> bool {
    const STRANGER: u32 = 65534;
    let root_is_here = || {
        let map = fs::read_to_string("/proc/self/uid_map");
        map.map_or(true, |map| map.lines().any(|line| line.split_whitespace().next() == Some("0")))
    };
    uid == 0 || uid == STRANGER && !root_is_here()
}

/// Makes a newly created file in a node's directory accessible to the directory's users.
pub(crate) fn new_file(file: &fs::File, dir: &Path) -> io::Result<()> {
    if is_shared(&fs::metadata(dir)?) {
        file.set_permissions(fs::Permissions::from_mode(0o660))?;
    }
    Ok(())
}

/// Refuses a directory that neither belongs to the caller nor to root and a group of the caller's. Changes nothing. Other users are not
/// trusted: one of them may have placed a directory where the caller's is expected.
pub fn check(dir: &Path) -> Result<(), DirError> {
    let refuse = |why: String| DirError { dir: dir.display().to_string(), why };
    let uid = geteuid().as_raw();
    // In a world-writable directory, the name may be a link that another user made to one of the caller's directories. The check is done
    // without a trailing slash, which would follow the link.
    let name: PathBuf = dir.components().collect();
    let link = fs::symlink_metadata(&name).map_err(|e| refuse(e.to_string()))?;
    if link.is_symlink() && link.uid() != uid {
        return Err(refuse(format!("it is a symbolic link of uid {}, you are uid {uid}", link.uid())));
    }
    let meta = fs::metadata(dir).map_err(|e| refuse(e.to_string()))?;
    if !meta.is_dir() {
        return Err(refuse("it is not a directory".into()));
    }
    let shared = is_shared(&meta);
    if meta.uid() != uid && !shared {
        return Err(refuse(format!("it is owned by uid {}, you are uid {uid}", meta.uid())));
    }
    if meta.uid() != uid && !has_group(meta.gid()) {
        return Err(refuse(format!("it is shared with group {}, which is none of yours", meta.gid())));
    }
    if !shared && meta.mode() & 0o022 != 0 {
        return Err(refuse(format!(
            "mode {:04o} lets others write to it, expected 0700",
            meta.mode() & 0o7777
        )));
    }
    Ok(())
}

/// Like [`claim`], but requires a memory file system. Returns the absolute path.
pub(crate) fn claim_in_memory(dir: &Path) -> Result<PathBuf, NodeError> {
    let full = claim(dir)?;
    match in_memory(&full) {
        true => Ok(full),
        false => {
            let why = "it lies on a disk, expected a file system in memory such as /dev/shm".into();
            Err(DirError { dir: full.display().to_string(), why }.into())
        }
    }
}

/// The absolute path of an existing node directory of the caller.
pub(crate) fn existing(dir: &Path) -> Result<PathBuf, NodeError> {
    match fs::canonicalize(dir) {
        Ok(full) => {
            // Checks both the given name, which may be a link, and its target.
            check(dir)?;
            check(&full)?;
            Ok(full)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(NodeError::Missing(dir.into())),
        Err(e) => Err(DirError { dir: dir.display().to_string(), why: e.to_string() }.into()),
    }
}

/// True if the file system of `path` keeps its files in memory, as a region shared by processes requires.
pub fn in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|s| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&s.filesystem_type()))
}

/// The space of the file system of `path`. `None` if it has no limit or does not report one.
pub fn space(path: &Path) -> Option<Space> {
    let of = |s: Statfs| {
        let bytes = |blocks| blocks * s.block_size() as u64;
        Space { total: bytes(s.blocks()), free: bytes(s.blocks_available()) }
    };
    statfs(path).ok().map(of).filter(|space| space.total != 0)
}

/// Bytes free to the caller in the file system of `path`; `None` as for [`space`].
pub fn free_bytes(path: &Path) -> Option<u64> {
    space(path).map(|space| space.free)
}

/// True if the caller is in `group`, as its primary or a supplementary group.
fn has_group(group: u32) -> bool {
    let group = Gid::from_raw(group);
    getegid() == group || getgroups().is_ok_and(|all| all.contains(&group))
}

fn owner(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|m| m.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("ironverbs-dir-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_missing_directory_is_created_for_its_owner_only() {
        let dir = scratch("new");
        let full = claim(&dir).unwrap();
        assert_eq!(fs::metadata(&full).unwrap().mode() & 0o777, 0o700);
        claim(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_directory_others_can_write_is_refused_in_one_line() {
        let dir = scratch("open");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let said = claim(&dir).unwrap_err().to_string();
        assert!(said.contains("0777") && !said.contains('\n'), "{said}");
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_directory_of_another_user_is_refused_by_name() {
        let (dir, other) = if geteuid().is_root() {
            let dir = scratch("foreign");
            fs::create_dir(&dir).unwrap();
            chown(&dir, Some(65534), None).unwrap();
            (dir, 65534)
        } else {
            (PathBuf::from("/"), 0)
        };
        let said = claim(&dir).unwrap_err().to_string();
        assert!(said.contains(&format!("owned by uid {other}")), "{said}");
        if other != 0 {
            fs::remove_dir(&dir).unwrap();
        }
    }

    #[test]
    fn a_directory_is_shared_with_a_group_on_purpose_alone() {
        if !geteuid().is_root() {
            return;
        }
        let dir = scratch("shared");
        let mode = |mode| {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            claim(&dir).map(drop).map_err(|e| e.to_string())
        };
        share(&dir, 4321).unwrap();
        share(&dir, 4321).unwrap();
        let of = |name: &str| fs::metadata(dir.join(name)).map(|m| (m.gid(), m.mode() & 0o7777)).unwrap();
        assert_eq!((of(""), of("parties"), of("ports")), ((4321, 0o2770), (4321, 0o660), (4321, 0o660)));
        assert_eq!(mode(0o2770), Ok(()), "the owner may use it, whatever its groups");
        for refused in [0o770, 0o2775, 0o2772, 0o2777] {
            assert!(mode(refused).unwrap_err().contains(&format!("{refused:04o}")), "{refused:o}");
        }
        // Only root's directories may be shared: another user could have placed the directory there.
        mode(0o2770).unwrap();
        chown(&dir, Some(65534), None).unwrap();
        assert!(claim(&dir).unwrap_err().to_string().contains("owned by uid 65534"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_link_that_another_user_laid_is_refused_and_ones_own_is_followed() {
        let (dir, link) = (scratch("linked"), scratch("link"));
        let _ = fs::remove_file(&link);
        claim(&dir).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert_eq!(claim(&link).unwrap(), fs::canonicalize(&dir).unwrap());
        if geteuid().is_root() {
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            for name in [link.clone(), link.join("")] {
                let said = claim(&name).unwrap_err().to_string();
                assert!(said.contains("symbolic link of uid 65534") && !said.contains('\n'), "{said}");
            }
        }
        fs::remove_file(&link).unwrap();
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_refused() {
        let file = scratch("file");
        fs::write(&file, "").unwrap();
        assert!(claim(&file).unwrap_err().to_string().contains("not a directory"));
        fs::remove_file(&file).unwrap();
    }
}
