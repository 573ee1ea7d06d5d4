//! Options for serving an adapter's functions to another kernel, and its wire to others.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueHint};
use devmodel::serve::Misbehaviour;
use devmodel::wire::Faults;
use link::LinkSpec;
use node::devices::MAX_VFS;

use super::{Identity, NodeDir, NodeDirs, Wanted};
use crate::linux::{Memory, VfRange};

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub wanted: Wanted,
    /// A function (0 is the PF) and the vfio-user socket to serve it at; may be repeated
    #[arg(long = "plug", required_unless_present_any = ["links", "virtio"], value_name = "FUNCTION=SOCKET")]
    pub plugs: Vec<PlugAt>,
    /// A function and the vhost-user socket at which user-mode Linux gets it on its PCI bus; may be repeated. With the PF, the others are
    /// its VFs there, numbered from 1
    #[arg(long = "plug-virtio", value_name = "FUNCTION=SOCKET")]
    pub virtio: Vec<PlugAt>,
    /// A link, as of `ironverbs link`, to serve guests and a wire by one process; may be repeated
    #[arg(long = "link", value_name = "LINK")]
    pub links: Vec<LinkSpec>,
    /// Faults of frames on the links, as of `ironverbs link --fault`
    #[arg(long, alias = "link-faults", requires = "links", value_name = "SPEC")]
    pub link_fault: Option<Faults>,
    /// Make the functions misbehave in one or more ways, separated by commas: wrong-health[=fatal], stuck-command[=OPCODE],
    /// lost-interrupt[=VECTOR], power-loss=COMMANDS, power-loss@WHEN, ask-pages=PAGES@WHEN, ask-pages=PAGES@teardown; the first two and
    /// WHEN as in power-loss@1000 (after that many commands) or power-loss@doorbell=1000
    #[arg(long, value_name = "HOW", value_delimiter = ',')]
    pub misbehave: Vec<Misbehaviour>,
    /// Record registers, commands and work requests sent to the functions in this file (see `ironverbs trace`)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Keep system calls and capabilities that serving does not need, to debug the server
    #[arg(long)]
    pub no_jail: bool,
}

#[derive(Args)]
pub struct Link {
    #[command(flatten)]
    pub node: NodeDir,
    /// Number that distinguishes adapters on one wire, for a new one [default: 0]
    #[arg(long, value_name = "N")]
    pub id: Option<u16>,
    /// Faults of frames on the links, in both directions, such as drop=1%,reorder=0.5%,delay=20us,seed=7
    #[arg(long, value_name = "SPEC")]
    pub fault: Option<Faults>,
    /// Keep system calls and capabilities that links do not need, to debug them
    #[arg(long)]
    pub no_jail: bool,
    /// Links: udp:ADDRESS,peer=ADDRESS (RoCE v2 on UDP port 4791; either address may be left out), tap:NAME (a TAP device of this host's
    /// kernel), node:DIR (another adapter of this host; the only link of InfiniBand), dgram:LOCAL,PEER (raw frames on a unix datagram
    /// socket), stream:listen:PATH or stream:connect:PATH
    #[arg(required = true, value_name = "LINK")]
    pub links: Vec<LinkSpec>,
}

#[derive(Args)]
pub struct Linux {
    #[command(flatten)]
    pub nodes: NodeDirs,
    #[command(flatten)]
    pub identity: Identity,
    /// Maximum number of VFs of each PF there [default: as many as the adapter has, 7 at most]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=i64::from(MAX_VFS)))]
    pub vfs: Option<u8>,
    /// Give the guest only VFs of the adapter, such as 4-6, like a virtual machine without a PF
    #[arg(long, value_name = "FIRST-LAST", conflicts_with = "vfs")]
    pub functions: Option<VfRange>,
    /// Folder to use as the guest's root; its changes are discarded at the end
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/")]
    pub root: PathBuf,
    /// Folder that the guest has at the same path and can write to; may be repeated
    #[arg(long = "share", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub shares: Vec<PathBuf>,
    /// Number of processors [default: as many as this host has, 8 at most]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
    cpus: Option<u8>,
    /// Memory size [default: 1G, or as much as its VFs need]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Memory>,
    /// Kernel to start [default: the last that scripts/linux-kernel.sh made]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Write the kernel's log to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Command to run there; its exit status becomes this program's [default: a shell]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl Linux {
    /// Number of processors of the guest.
    pub fn cpus(&self) -> u8 {
        let there = || std::thread::available_parallelism().map_or(1, |count| count.get().min(8) as u8);
        self.cpus.unwrap_or_else(there)
    }
}

/// A function and its socket.
#[derive(Clone, Debug)]
pub struct PlugAt {
    pub function: u8,
    pub path: PathBuf,
}

impl FromStr for PlugAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (function, path) = text.split_once('=').unwrap_or((text, ""));
        match function.parse() {
            Ok(function) if !path.is_empty() => Ok(Self { function, path: path.into() }),
            _ => Err(format!("'{text}': expected a function's number and a path, such as 1=/tmp/iron1")),
        }
    }
}
