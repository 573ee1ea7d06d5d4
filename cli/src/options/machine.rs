//! Options of what serves a node's functions to another kernel.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueHint};
use devmodel::serve::Misbehaviour;
use devmodel::wire::Faults;
use link::LinkSpec;

use super::{Identity, NodeDir, Wanted};
use crate::linux::{MOST_VFS, Memory, VfRange};

#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub wanted: Wanted,
    /// A function (0 is the PF) and the socket it is to be plugged in at; for several functions, several times
    #[arg(long = "plug", required_unless_present_any = ["links", "virtio"], value_name = "FUNCTION=SOCKET")]
    pub plugs: Vec<PlugAt>,
    /// A function and the vhost-user socket at which user-mode Linux has it on its PCI bus; for several functions, several times.
    /// Beside the PF the others are its VFs there, from 1 on
    #[arg(long = "plug-virtio", value_name = "FUNCTION=SOCKET")]
    pub virtio: Vec<PlugAt>,
    /// Where the node's wire leads, several times for several: dgram:LOCAL,PEER (raw frames on a unix datagram socket),
    /// stream:listen:PATH or stream:connect:PATH, udp:ADDRESS,peer=ADDRESS (RoCE v2 on UDP port 4791; either
    /// address may be left out), tap:NAME (a TAP device of this host's kernel), node:DIR (another node of this host)
    #[arg(long = "link", value_name = "LINK")]
    pub links: Vec<LinkSpec>,
    /// What befalls frames on the links, both ways, such as drop=1%,reorder=0.5%,delay=20us,seed=7
    #[arg(long, requires = "links", value_name = "FAULTS")]
    pub link_faults: Option<Faults>,
    /// Break the functions on purpose, in one way or, with commas between, several: wrong-health[=fatal], stuck-command[=OPCODE],
    /// lost-interrupt[=VECTOR], power-loss=COMMANDS, power-loss@WHEN, ask-pages=PAGES@WHEN, ask-pages=PAGES@teardown; the
    /// first two and WHEN as in power-loss@1000 (behind so many commands) or power-loss@doorbell=1000
    #[arg(long, value_name = "HOW", value_delimiter = ',')]
    pub misbehave: Vec<Misbehaviour>,
    /// Record what is sent to the functions in this file: registers, commands, work requests (see `ironverbs stream`)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Keep system calls and capabilities that serving does not need, to debug the server
    #[arg(long)]
    pub no_jail: bool,
}

#[derive(Args)]
pub struct Linux {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub identity: Identity,
    /// VFs that each PF can be told to have there [default: as many as the node has, 7 at most, fewer with many adapters]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=i64::from(MOST_VFS)))]
    pub vfs: Option<u8>,
    /// Another node whose PF and VFs the guest has too; for several, several times
    #[arg(long = "adapter", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub adapters: Vec<PathBuf>,
    /// VFs of the node, such as 4-6, alone: as a virtual machine has them, without a PF
    #[arg(long, value_name = "FIRST-LAST", conflicts_with_all = ["vfs", "adapters"])]
    pub functions: Option<VfRange>,
    /// Folder that the guest has as its root; what it writes is gone at the end
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/")]
    pub root: PathBuf,
    /// Folder that the guest has at the same place, and writes to; for several, several times
    #[arg(long = "share", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub shares: Vec<PathBuf>,
    /// Processors [default: as many as this host has, 8 at most]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
    cpus: Option<u8>,
    /// Memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: Memory,
    /// The kernel [default: the last that scripts/linux-kernel.sh made]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Write the kernel's log to this file
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The command to run there, whose exit status becomes this program's [default: a shell]
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

impl Linux {
    /// Processors of the guest.
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
