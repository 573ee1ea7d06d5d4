//! Ports of the connection manager: the process that has each, and which ones listen.
//!
//! Port numbers are per node and port space, as on a host they are per host. They are POSIX record locks on one file, like the parties (see
//! `locks`): they are released however the process ends. A lock does not show other holds of the same process, which keeps its own list of
//! them.

use super::{NodeError, data, sys};
use ::sync::Kept;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::{Mutex, PoisonError},
};

/// The purpose of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// A process has bound the port.
    Bound,
    /// A process listens on it.
    Listening,
    /// A process responds for the function when there is no listener; port space and port are 0.
    Elder,
    /// A process sends and receives MADs at the function with the tag `port`.
    Agent,
    /// A process publishes its connection identifiers in block `port` of the file (see `cm_board`).
    CmBoard,
    /// A process is a member of an InfiniBand multicast group at the function `address`; port space and port are derived from the group.
    Group,
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Shared with other processes that hold it in this mode.
    Shared,
    /// Exclusively.
    Alone,
}

/// A port at one address of the node, or at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAt {
    /// Number of the port space, below 256.
    pub space: u8,
    /// Port.
    pub port: u16,
    /// Number of the address, below [`ADDRESSES`]; `None` means all of them.
    pub address: Option<u8>,
}

/// Number of addresses that can be distinguished.
pub const ADDRESSES: u16 = 256;

/// Number of TCP's port space.
pub const TCP: u8 = 0;

impl PortAt {
    /// Something that belongs to function `fid` as a whole.
    pub fn of_function(fid: u8, port: u16) -> Self {
        Self { space: 0, port, address: Some(fid) }
    }

    /// The number of the address at GID `gid` of function `fid`: each function has two, its link-local address and the others.
    pub fn address_of(fid: u8, gid: u8) -> u8 {
        (fid & 0x7f) << 1 | u8::from(gid != 0)
    }

    fn range(self, matter: Matter) -> (i64, i64) {
        let row = (matter as i64) << 32 | i64::from(self.space) << 24 | i64::from(self.port) << 8;
        self.address.map_or((row, ADDRESSES.into()), |address| (row + i64::from(address), 1))
    }
}

/// Name of the file in the node's directory.
pub(crate) const NAME: &str = "ports";

/// The ports of one node, as seen by this process.
pub struct Ports {
    file: Kept<File>,
    id: (u64, u64, u32),
}

static OPEN: Mutex<Vec<&'static Ports>> = Mutex::new(Vec::new());

impl Ports {
    /// Opens the ports of the adapter in `dir`, which must exist.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub fn open(dir: &Path) -> Result<&'static Self, NodeError> {
        let path = dir.join(NAME);
        let failed = || NodeError::system(format!("open {}", path.display()));
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // Closing any descriptor of the file would release all locks, so it is opened once and never closed.
        let known = data::id(&path).map(|(device, inode)| (device, inode, std::process::id()));
        if let Some(known) = open.iter().find(|ports| Some(ports.id) == known) {
            return Ok(known);
        }
        let file = data::open_or_make(&path).map_err(failed())?;
        let meta = file.metadata().map_err(failed())?;
        let id = (meta.dev(), meta.ino(), std::process::id());
        let file = Kept::in_place(file).map_err(failed())?;
        let ports: &'static Self = Box::leak(Box::new(Self { file, id }));
        open.push(ports);
        Ok(ports)
    }

    /// Removes the ports of the adapter in `dir`, on which no program lives.
    pub(crate) fn remove(dir: &Path) {
        let _ = std::fs::remove_file(dir.join(NAME));
    }

    /// Ports of this process alone, for functions that belong to no node, which serve one process at a time. A forked child gets its own.
    ///
    /// # Errors
    /// There is no memory for the file.
    pub fn private() -> io::Result<&'static Self> {
        static PRIVATE: Mutex<Vec<&'static Ports>> = Mutex::new(Vec::new());
        let mut known = PRIVATE.lock().unwrap_or_else(PoisonError::into_inner);
        let here = std::process::id();
        if let Some(ports) = known.iter().find(|ports| ports.id.2 == here) {
            return Ok(ports);
        }
        let file = File::from(memfd_create(c"ironverbs-ports", MFdFlags::MFD_CLOEXEC)?);
        let meta = file.metadata()?;
        let (file, id) = (Kept::new(file)?, (meta.dev(), meta.ino(), here));
        let ports: &'static Self = Box::leak(Box::new(Self { file, id }));
        known.push(ports);
        Ok(ports)
    }

    /// Takes `at`, or changes the mode in which this process holds it. Returns false if another process holds it in a conflicting mode.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn take(&self, matter: Matter, at: PortAt, hold: Hold) -> io::Result<bool> {
        sys::lock_range(self.file()?, at.range(matter), hold == Hold::Alone)
    }

    /// Releases `at`, in any mode.
    pub fn release(&self, matter: Matter, at: PortAt) {
        if let Ok(file) = self.file() {
            sys::unlock_range(file, at.range(matter));
        }
    }

    /// True if another process holds any part of `at`.
    pub fn held_elsewhere(&self, matter: Matter, at: PortAt) -> bool {
        self.file().is_ok_and(|file| Self::holder(file, matter, at).is_some())
    }

    /// PID of the other process that holds any part of `at` in a node's file; 0 if it is hidden by another PID namespace.
    pub fn holder(file: &File, matter: Matter, at: PortAt) -> Option<u32> {
        sys::range_holder(file, at.range(matter)).ok().flatten()
    }

    /// Writes connection identifiers to the file.
    ///
    /// # Errors
    /// EFBIG: the file would exceed the process's limit, which raises SIGXFSZ. Also if there is no room, or the file was closed.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if at + bytes.len() as u64 > sys::file_size_limit() {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        self.file()?.write_all_at(bytes, at)
    }

    /// The file, which also holds the connection identifiers.
    pub(super) fn file(&self) -> io::Result<&File> {
        self.file.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The view of another process: a forked child, which does not inherit record locks.
    fn elsewhere(see: impl FnOnce() -> bool) -> bool {
        sys::in_child(see)
    }

    #[test]
    fn a_port_excludes_the_same_port_of_another_process_and_no_other() {
        let dir = &testkit::Scratch::made().0;
        let ports = Ports::open(dir).unwrap();
        assert!(std::ptr::eq(ports, Ports::open(dir).unwrap()));
        let at = |port, address| PortAt { space: 1, port, address };
        assert!(ports.take(Matter::Bound, at(7000, Some(3)), Hold::Alone).unwrap());
        assert!(ports.take(Matter::Bound, at(7001, None), Hold::Shared).unwrap());
        for (port, address, hold, free) in [
            (7000, Some(3), Hold::Alone, false),
            (7000, Some(3), Hold::Shared, false),
            (7000, None, Hold::Alone, false),
            (7000, Some(4), Hold::Alone, true),
            (7001, Some(200), Hold::Alone, false),
            (7001, Some(200), Hold::Shared, true),
            (7002, None, Hold::Alone, true),
        ] {
            let got = elsewhere(|| ports.take(Matter::Bound, at(port, address), hold).unwrap_or(false));
            assert_eq!(got, free, "{port} {address:?} {hold:?}");
        }
        assert!(elsewhere(|| ports.held_elsewhere(Matter::Bound, at(7000, None))));
        assert!(!elsewhere(|| ports.held_elsewhere(Matter::Listening, at(7000, None))));
        // Ports of a single process exclude no other process.
        let private = Ports::private().unwrap();
        assert!(std::ptr::eq(private, Ports::private().unwrap()));
        assert!(private.take(Matter::Bound, at(7000, Some(3)), Hold::Alone).unwrap());
        assert!(elsewhere(|| {
            let theirs = Ports::private().unwrap();
            !std::ptr::eq(theirs, private)
                && theirs.take(Matter::Bound, at(7000, Some(3)), Hold::Alone).unwrap()
        }));
        ports.release(Matter::Bound, at(7000, Some(3)));
        assert!(!elsewhere(|| ports.held_elsewhere(Matter::Bound, at(7000, None))));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
