//! Options about a node: which one, what it is made with, and what is done to it.

use std::path::PathBuf;

use super::time::TimeRules;
use clap::{Args, Subcommand, ValueHint};
use devmodel::wire::Faults;
use devmodel::{LinkLayer, strict::Strict};
use node::dir;
use node::naming::{Bus, Name};
use node::{FunctionAddress, NodeOptions};

#[derive(Subcommand)]
pub enum Node {
    /// Make a node without running anything on it
    Create(Create),
    /// Give a device an IP address, which becomes its GID 1
    Address(SetAddress),
    /// Write the frames on a node's wire to a file, as long as this runs
    Capture(Capture),
    /// Let faults befall the frames on a node's wire, as long as this runs
    Faults(WireTrial),
    /// Let a node's time go on for programs in virtual time, as long as there are any; `run --clock timed` starts it
    Conduct {
        #[command(flatten)]
        node: NodeDir,
        #[command(flatten)]
        rules: TimeRules,
    },
    /// Show the programs on a node, its functions and what they counted
    Status {
        #[command(flatten)]
        how: LookOptions,
        #[command(flatten)]
        watch: Watch,
    },
    /// Remove a node: the next program makes a new one
    Reset(Reset),
}

/// What a command that only looks shows, and how.
#[derive(Args)]
pub struct LookOptions {
    #[command(flatten)]
    pub node: NodeDir,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// How often to look.
#[derive(Args)]
#[group(id = "watching")]
pub struct Watch {
    /// Again every so many seconds, as rates, until a signal comes; as JSON a line each time
    #[arg(long, num_args = 0..=1, default_missing_value = "1", value_name = "SECONDS")]
    pub watch: Option<f64>,
    /// So often
    #[arg(long, value_name = "N", requires = "watch")]
    pub times: Option<u64>,
}

#[derive(Args)]
pub struct SetAddress {
    #[command(flatten)]
    pub node: NodeDir,
    /// The device, by its name or number, such as iron1
    pub device: String,
    /// Its address, such as 10.0.0.5/24; none: the one it has by itself
    pub address: Option<FunctionAddress>,
}

#[derive(Args)]
pub struct Capture {
    #[command(flatten)]
    pub node: NodeDir,
    /// End after so many seconds [default: when it is stopped by a signal]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// The file to write, in pcap format; an existing one is written over
    pub file: PathBuf,
}

#[derive(Args)]
pub struct WireTrial {
    #[command(flatten)]
    pub node: NodeDir,
    /// Write what befell which frame and what followed, and all frames, as JSON
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Chances go by this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// End after so many seconds [default: when it is stopped by a signal]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// The plan (TOML)
    pub plan: PathBuf,
}

#[derive(Args)]
pub struct Create {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    pub seen: Seen,
    /// Virtual functions the node is to have [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    pub vfs: Option<u8>,
    /// Let all users of this group use the node; only root's can be shared
    #[arg(long, value_name = "NAME or NUMBER")]
    pub group: Option<String>,
}

/// What a node is made with and keeps; naming another for a node that is there is an error.
#[derive(Args, Clone, Copy)]
pub struct Identity {
    /// What the ports speak [default: as the node does, ethernet if it is new]
    #[arg(long, value_enum)]
    link_layer: Option<Layer>,
    /// Tells nodes on one wire apart: part of every MAC and GUID [default: as the node has it, 0 if it is new]
    #[arg(long, value_name = "N")]
    node_id: Option<u16>,
    /// What befalls frames between the node's devices, such as drop=1%,duplicate=0.1%,seed=7 [default: as the node has it,
    /// nothing if it is new]
    #[arg(long = "wire-faults", value_name = "FAULTS")]
    wire_faults: Option<Faults>,
    /// As strict as a card, in all that is known or in some: owner=pf, pages=real, events=strict, uid=strict, reserved=zero,
    /// slow=FACTOR, ids=CARD (cx4lx, cx5, cx6, cx6dx, cx7, bf2), with commas between [default: as the node is, none
    /// if it is new]
    #[arg(long, value_name = "SWITCHES", num_args = 0..=1, default_missing_value = "all")]
    strict: Option<Strict>,
}

/// Names what programs see of the machine that a node stands for; a node keeps what it was made with.
#[derive(Args, Clone, Copy)]
pub struct Seen {
    /// What programs call the PF, such as mlx5_0; its VFs count on [default: as the node has it, iron0 if it is new]
    #[arg(long)]
    name: Option<Name>,
    /// The PF's PCI address, such as 0000:3b:00.0; its VFs are behind it [default: as the node has it, 0000:c1:00.0 if it is new]
    #[arg(long = "pci", value_name = "ADDRESS")]
    bus: Option<Bus>,
    /// The NUMA node that the adapter is near [default: as the node has it, none if it is new]
    #[arg(long, value_name = "N")]
    numa: Option<u16>,
}

impl Seen {
    /// `base` with what was given on the command line.
    pub fn over(self, base: NodeOptions) -> NodeOptions {
        let Self { name, bus, numa } = self;
        NodeOptions { name, bus, numa, ..base }
    }
}

/// The node a command wants, which it makes if there is none.
#[derive(Args, Clone, Copy)]
pub struct Wanted {
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    seen: Seen,
    /// Virtual functions the node is to have [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    vfs: Option<u8>,
    /// On a new node, let no program copy to and from another's memory: each one's own thread does it, slower
    #[arg(long)]
    no_direct_copies: bool,
}

impl Wanted {
    /// What was given on the command line.
    pub fn options(self) -> NodeOptions {
        let no_direct_copies = self.no_direct_copies;
        let base = NodeOptions { vfs: self.vfs, no_direct_copies, ..NodeOptions::default() };
        self.identity.over(self.seen.over(base))
    }

    /// Whether anything was given.
    pub fn is_any(self) -> bool {
        let Identity { link_layer, node_id, wire_faults, strict } = self.identity;
        let Seen { name, bus, numa } = self.seen;
        self.vfs.is_some()
            || self.no_direct_copies
            || link_layer.is_some()
            || node_id.is_some()
            || wire_faults.is_some()
            || strict.is_some()
            || name.is_some()
            || bus.is_some()
            || numa.is_some()
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Layer {
    /// Ethernet, with RoCE v2
    Ethernet,
    /// InfiniBand
    Infiniband,
}

impl Identity {
    /// `base` with what was given on the command line.
    pub fn over(self, base: NodeOptions) -> NodeOptions {
        let link_layer = self.link_layer.map(|layer| match layer {
            Layer::Ethernet => LinkLayer::Ethernet,
            Layer::Infiniband => LinkLayer::Infiniband,
        });
        NodeOptions {
            link_layer,
            node_id: self.node_id,
            faults: self.wire_faults,
            strict: self.strict,
            ..base
        }
    }
}

#[derive(Args)]
pub struct Reset {
    #[command(flatten)]
    pub node: NodeDir,
    /// Even while programs are on it; they go on by themselves
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct NodeDir {
    /// Directory of the node; all programs run on it share one adapter [default: the one this program runs on, else one
    /// per user, in memory]
    #[arg(long = "node", value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl NodeDir {
    /// Whether a node was named, or this program runs on one.
    pub fn is_named(&self) -> bool {
        self.dir.is_some() || std::env::var_os("IRONVERBS_NODE").is_some()
    }

    /// The directory named, or that of the node we were launched on, or the user's own.
    pub fn path(&self) -> PathBuf {
        let around = || std::env::var_os("IRONVERBS_NODE").map(PathBuf::from).filter(|dir| dir.is_absolute());
        self.dir.clone().or_else(around).unwrap_or_else(dir::default_dir)
    }
}
