//! Errors of node operations. Each reads as one line.

use super::{dir::DirError, holder::Holder, party_set::PROGRAMS};
use std::{io, path::PathBuf};

/// The reason why an adapter or one of its devices could not be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The directory cannot hold an adapter.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// There is no adapter in the directory.
    #[error("no adapter in {}: start a program with 'ironverbs run' first", .0.display())]
    Missing(PathBuf),
    /// The adapter was created by another version, or is damaged.
    #[error("the adapter in {} was made by another version ({found}, expected {expected}): delete it (ironverbs adapter delete)", dir.display())]
    Version {
        /// The adapter's directory.
        dir: PathBuf,
        /// The version in its file.
        found: String,
        /// The version that this program supports.
        expected: String,
    },
    /// Not enough room in shared memory.
    #[error("no room in shared memory for the adapter in {}: {need} KiB needed, {free} KiB free", dir.display())]
    NoRoom {
        /// The adapter's directory.
        dir: PathBuf,
        /// Required free space in KiB.
        need: u64,
        /// Actual free space in KiB.
        free: u64,
    },
    /// This process has no address space left to map the adapter.
    #[error("no addresses are left to map the adapter in {}: is there a limit (ulimit -v)?", .0.display())]
    NoAddresses(PathBuf),
    /// The caller may not create a file of that size.
    #[error(
        "cannot make the adapter in {}: files of this process may have {limit} bytes (ulimit -f), and the adapter's, of which only what is used takes memory, has {need}",
        dir.display()
    )]
    FileSize {
        /// The adapter's directory.
        dir: PathBuf,
        /// The limit in bytes.
        limit: u64,
        /// Size of the adapter's file in bytes.
        need: u64,
    },
    /// Programs are using the adapter.
    #[error("the adapter in {} is in use by {}", dir.display(), crate::error::pids(.pids))]
    Busy {
        /// The adapter's directory.
        dir: PathBuf,
        /// Process IDs of the programs; 0 for one that is hidden by another PID namespace.
        pids: Vec<u32>,
    },
    /// The adapter has this version, but contains values that this version never writes.
    #[error("the adapter in {} is damaged ({what}): delete it (ironverbs adapter delete)", dir.display())]
    Damaged {
        /// The adapter's directory.
        dir: PathBuf,
        /// The expected and the found value.
        what: String,
    },
    /// A process holds the adapter's lock, possibly forever.
    #[error("the adapter in {} is locked by {holder}", dir.display())]
    Held {
        /// The adapter's directory.
        dir: PathBuf,
        /// The process that holds it.
        holder: Holder,
    },
    /// A stopped program holds a function that an operation needs.
    #[error("{what} has to wait for {holder}")]
    Stopped {
        /// The operation that needs it.
        what: String,
        /// The stopped program.
        holder: Holder,
    },
    /// All slots for programs are taken.
    #[error("{PROGRAMS} programs at most run on an adapter, and that many do")]
    Full,
    /// The number of VFs differs from the adapter's.
    #[error("the adapter has {have} virtual functions, asked for {asked}: {remedy}")]
    Vfs {
        /// VFs enabled.
        have: u8,
        /// VFs requested.
        asked: u8,
        /// The step that would help.
        remedy: &'static str,
    },
    /// A property that is fixed at the adapter's creation differs.
    #[error("the adapter in {} has {what} {found}, asked for {asked}: delete it, or use another --adapter", dir.display())]
    Differs {
        /// The adapter's directory.
        dir: PathBuf,
        /// The property.
        what: &'static str,
        /// The requested value.
        asked: String,
        /// The adapter's value.
        found: String,
    },
    /// The address belongs to another function.
    #[error("{ip} is the address of iron{fid}")]
    AddressTaken {
        /// The address.
        ip: std::net::IpAddr,
        /// The function that has the address.
        fid: u8,
    },
    /// A link that carries Ethernet only.
    #[error(
        "the adapter in {} speaks InfiniBand, which {link} does not carry: join it to another InfiniBand adapter by node:DIR",
        dir.display()
    )]
    NotCarried {
        /// The adapter's directory.
        dir: PathBuf,
        /// The link.
        link: String,
    },
    /// The number is too large for an InfiniBand adapter.
    #[error("--id {id}: expected {most} at most on InfiniBand, where LIDs follow from the id")]
    SubnetId {
        /// The number.
        id: u16,
        /// The highest one.
        most: u16,
    },
    /// The two nodes cannot be joined.
    #[error(
        "the adapter in {} has id {id} and ports of {layer}: joined adapters need different ids and ports of one kind",
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
    /// Another process consumes the outlet.
    #[error("the {what} of the adapter in {} is held by process {pid}", dir.display())]
    OutletHeld {
        /// The outlet.
        what: &'static str,
        /// The adapter's directory.
        dir: PathBuf,
        /// The process that consumes it; 0 if it is hidden by another PID namespace.
        pid: u32,
    },
    /// There is no such device.
    #[error("no device iron{fid}: the adapter has iron0 to iron{vfs}")]
    NoDevice {
        /// Requested function.
        fid: u8,
        /// VFs enabled.
        vfs: u8,
    },
    /// No device has this name.
    #[error("no device '{found}': expected {} to {}", .names[0], .names[1])]
    NoName {
        /// The name that was given.
        found: String,
        /// The names of the adapter's first and last device.
        names: [String; 2],
    },
    /// The function is served to a client, or cannot be served because programs have it open.
    #[error("iron{fid} is in use: it is {how} by {}", crate::error::pids(.pids))]
    InUse {
        /// Function.
        fid: u8,
        /// "served" or "open".
        how: &'static str,
        /// Process IDs; 0 for one that is hidden by another PID namespace.
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
    /// The region is not valid.
    #[error(transparent)]
    Region(#[from] devmodel::region::RegionError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The failed step, to be read after "cannot".
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl NodeError {
    /// For `map_err`: the step `what` failed.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }

    /// The errno for callers of verbs.
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
            | Self::NotCarried { .. }
            | Self::SubnetId { .. }
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
