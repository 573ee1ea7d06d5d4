//! Why a node cannot be used, each reason in one line.

use super::{dir::DirError, holder::Holder, party_set::PROGRAMS};
use std::{io, path::PathBuf};

/// Why a node, or a device of it, could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The directory cannot hold a node.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// There is no node in the directory.
    #[error("no node in {}: start a program with 'ironverbs run' first", .0.display())]
    Missing(PathBuf),
    /// Another version made it, or it is damaged.
    #[error("the node in {} was made by another version ({found}, expected {expected}): reset it", dir.display())]
    Version {
        /// The node's directory.
        dir: PathBuf,
        /// The version that it states.
        found: String,
        /// The version that this program writes.
        expected: String,
    },
    /// No room in shared memory.
    #[error("no room in shared memory for the node in {}: {need} KiB needed, {free} KiB free", dir.display())]
    NoRoom {
        /// The node's directory.
        dir: PathBuf,
        /// KiB that should be free.
        need: u64,
        /// KiB that are.
        free: u64,
    },
    /// This process can map no more.
    #[error("no addresses are left to map the node in {}: is there a limit (ulimit -v)?", .0.display())]
    NoAddresses(PathBuf),
    /// The caller may not make a file of that size.
    #[error(
        "cannot make the node in {}: files of this process may have {limit} bytes (ulimit -f), and the node's, of which only what is used takes memory, has {need}",
        dir.display()
    )]
    FileSize {
        /// The node's directory.
        dir: PathBuf,
        /// Its limit.
        limit: u64,
        /// Bytes of the node's file.
        need: u64,
    },
    /// Programs are on the node.
    #[error("the node in {} is in use by {}", dir.display(), crate::error::pids(.pids))]
    Busy {
        /// The node's directory.
        dir: PathBuf,
        /// Process ids of the programs; 0 where another PID namespace hides it.
        pids: Vec<u32>,
    },
    /// It is of this version, and holds what nobody of this version writes.
    #[error("the node in {} is damaged ({what}): reset it", dir.display())]
    Damaged {
        /// The node's directory.
        dir: PathBuf,
        /// The value that was expected, and the one that was found.
        what: String,
    },
    /// A process holds the node's lock, and may hold it for ever.
    #[error("the node in {} is locked by {holder}", dir.display())]
    Held {
        /// The node's directory.
        dir: PathBuf,
        /// The process that holds it.
        holder: Holder,
    },
    /// A program that is stopped holds a function that something needs.
    #[error("{what} has to wait for {holder}")]
    Stopped {
        /// The operation that needs it.
        what: String,
        /// The program that is stopped.
        holder: Holder,
    },
    /// All places for programs are taken.
    #[error("{PROGRAMS} programs at most run on a node, and that many do")]
    Full,
    /// Another number of VFs than the node has.
    #[error("the node has {have} virtual functions, asked for {asked}: {remedy}")]
    Vfs {
        /// VFs enabled.
        have: u8,
        /// VFs asked for.
        asked: u8,
        /// The step that would help.
        remedy: &'static str,
    },
    /// A property of the node that only its making decides is another.
    #[error("the node in {} has {what} {found}, asked for {asked}: reset it, or use another --node", dir.display())]
    Differs {
        /// The node's directory.
        dir: PathBuf,
        /// The property.
        what: &'static str,
        /// The value that was asked for.
        asked: String,
        /// The value that the node has.
        found: String,
    },
    /// An address is another function's.
    #[error("{ip} is the address of iron{fid}")]
    AddressTaken {
        /// The address.
        ip: std::net::IpAddr,
        /// The function that has it.
        fid: u8,
    },
    /// A node of InfiniBand is to be joined to something.
    #[error("the node in {} speaks InfiniBand and is a subnet of its own: links join nodes of Ethernet", .0.display())]
    OwnSubnet(
        /// The node's directory.
        PathBuf,
    ),
    /// Two nodes that cannot be joined.
    #[error(
        "the node in {} has id {id} and ports of {layer}: joined nodes need different ids and ports of one kind",
        dir.display()
    )]
    NotJoined {
        /// The other node's directory.
        dir: PathBuf,
        /// Its id.
        id: u16,
        /// The link layer of its ports.
        layer: devmodel::LinkLayer,
    },
    /// Somebody else takes from an outlet.
    #[error("the {what} of the node in {} is held by process {pid}", dir.display())]
    OutletHeld {
        /// The outlet.
        what: &'static str,
        /// The node's directory.
        dir: PathBuf,
        /// The process that holds it; 0 where another PID namespace hides it.
        pid: u32,
    },
    /// No such device.
    #[error("no device iron{fid}: the node has iron0 to iron{vfs}")]
    NoDevice {
        /// Function asked for.
        fid: u8,
        /// VFs enabled.
        vfs: u8,
    },
    /// The name is no device's.
    #[error("no device '{found}': expected {} to {}", .names[0], .names[1])]
    NoName {
        /// The name that was given.
        found: String,
        /// The first device of the node, and its last.
        names: [String; 2],
    },
    /// A function is served to a client, or was to be served while programs have it open.
    #[error("iron{fid} is in use: it is {how} by {}", crate::error::pids(.pids))]
    InUse {
        /// Function.
        fid: u8,
        /// "served" or "open".
        how: &'static str,
        /// Process ids; 0 where another PID namespace hides it.
        pids: Vec<u32>,
    },
    /// The driver could not bring the device up.
    #[error("iron{fid}: {source}")]
    Device {
        /// Function.
        fid: u8,
        /// The driver's reason.
        source: driver::Error,
    },
    /// The region is not one.
    #[error(transparent)]
    Region(#[from] devmodel::region::RegionError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The step, to be read after "cannot".
        what: String,
        /// The error that the kernel gave.
        source: io::Error,
    },
}

impl NodeError {
    /// For `map_err`: the step `what` failed.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }

    /// The errno a verbs caller gets.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Missing(_) | Self::NoDevice { .. } | Self::NoName { .. } => libc::ENODEV,
            Self::NoRoom { .. } | Self::NoAddresses(_) => libc::ENOMEM,
            Self::FileSize { .. } => libc::EFBIG,
            Self::Held { .. }
            | Self::Stopped { .. }
            | Self::Busy { .. }
            | Self::Full
            | Self::InUse { .. }
            | Self::OutletHeld { .. } => libc::EBUSY,
            Self::AddressTaken { .. } => libc::EADDRINUSE,
            Self::Dir(_) => libc::EACCES,
            Self::Version { .. }
            | Self::Damaged { .. }
            | Self::Differs { .. }
            | Self::NotJoined { .. }
            | Self::OwnSubnet(_)
            | Self::Vfs { .. }
            | Self::Region(_) => libc::EINVAL,
            Self::Device { source, .. } => source.errno(),
            Self::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

fn pids(pids: &[u32]) -> String {
    match pids {
        [] => "a program".into(),
        [one] => format!("process {one}"),
        many => format!("processes {}", many.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}
