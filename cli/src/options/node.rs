//! Options for nodes: selection, creation, and operations.

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
    /// Create a node without running anything on it
    Create(Create),
    /// Set the IP address of a device, which becomes its GID 1
    Address(SetAddress),
    /// Write the frames on a node's wire to a file, as long as this runs
    Capture(Capture),
    /// Apply faults to frames on a node's wire, as long as this runs
    Faults(WireTrial),
    /// Advance a node's virtual time for its programs, as long as there are any; `run --clock timed` starts it
    Conduct {
        #[command(flatten)]
        node: NodeDir,
        #[command(flatten)]
        rules: TimeRules,
    },
    /// Show the programs on a node, its functions and their counters
    Status {
        #[command(flatten)]
        how: LookOptions,
        #[command(flatten)]
        watch: Watch,
    },
    /// Remove a node: the next program makes a new one
    Reset(Reset),
}

/// Options of commands that only show something.
#[derive(Args)]
pub struct LookOptions {
    #[command(flatten)]
    pub node: NodeDir,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// Options for repeated output.
#[derive(Args)]
#[group(id = "watching")]
pub struct Watch {
    /// Repeat every so many seconds, with rates, until a signal arrives; with --json one line each time
    #[arg(long, num_args = 0..=1, default_missing_value = "1", value_name = "SECONDS")]
    pub watch: Option<f64>,
    /// Number of repetitions
    #[arg(long, value_name = "N", requires = "watch")]
    pub times: Option<u64>,
}

#[derive(Args)]
pub struct SetAddress {
    #[command(flatten)]
    pub node: NodeDir,
    /// Device, by name or number, such as iron1
    pub device: String,
    /// IP address, such as 10.0.0.5/24; none: restore its default address
    pub address: Option<FunctionAddress>,
}

#[derive(Args)]
pub struct Capture {
    #[command(flatten)]
    pub node: NodeDir,
    /// End after so many seconds [default: when it is stopped by a signal]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// File to write, in pcap format; an existing file is overwritten
    pub file: PathBuf,
}

#[derive(Args)]
pub struct WireTrial {
    #[command(flatten)]
    pub node: NodeDir,
    /// Write the faults, the frames that they hit, their consequences, and all frames, as JSON
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Seed for random decisions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// End after so many seconds [default: when it is stopped by a signal]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Fault plan (TOML)
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
    /// Number of virtual functions of the node [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    pub vfs: Option<u8>,
    /// Let all users of this group use the node; only root can share one
    #[arg(long, value_name = "NAME or NUMBER")]
    pub group: Option<String>,
}

/// Properties that are fixed when a node is created; specifying others for an existing node is an error.
#[derive(Args, Clone, Copy)]
pub struct Identity {
    /// Link layer of the ports [default: as the node has it, ethernet if it is new]
    #[arg(long, value_enum)]
    link_layer: Option<Layer>,
    /// Number that distinguishes nodes on one wire: part of every MAC and GUID [default: as the node has it, 0 if it is new]
    #[arg(long, value_name = "N")]
    node_id: Option<u16>,
    /// Apply faults to frames between the node's devices, such as drop=1%,duplicate=0.1%,seed=7 [default: as the node has it, nothing if it
    /// is new]
    #[arg(long = "wire-faults", value_name = "FAULTS")]
    wire_faults: Option<Faults>,
    /// Make the adapter as strict as a card, in every known respect or in some: owner=pf, pages=real, events=strict, uid=strict,
    /// reserved=zero, slow=FACTOR, ids=CARD (cx4lx, cx5, cx6, cx6dx, cx7, bf2), separated by commas [default: as the node is, none if it is
    /// new]
    #[arg(long, value_name = "SWITCHES", num_args = 0..=1, default_missing_value = "all")]
    strict: Option<Strict>,
}

/// Names and addresses that programs see on the simulated machine; fixed when a node is created.
#[derive(Args, Clone, Copy)]
pub struct Seen {
    /// Verbs name of the PF, such as mlx5_0; its VFs have the following numbers [default: as the node has it, iron0 if it is new]
    #[arg(long)]
    name: Option<Name>,
    /// PCI address of the PF, such as 0000:3b:00.0; its VFs follow [default: as the node has it, 0000:c1:00.0 if it is new]
    #[arg(long = "pci", value_name = "ADDRESS")]
    bus: Option<Bus>,
    /// NUMA node of the adapter [default: as the node has it, none if it is new]
    #[arg(long, value_name = "N")]
    numa: Option<u16>,
}

impl Seen {
    /// `base` with the options of the command line.
    pub fn over(self, base: NodeOptions) -> NodeOptions {
        let Self { name, bus, numa } = self;
        NodeOptions { name, bus, numa, ..base }
    }
}

/// The node of a command that creates it if it is missing.
#[derive(Args, Clone, Copy)]
pub struct Wanted {
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    seen: Seen,
    /// Number of virtual functions of the node [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    vfs: Option<u8>,
    /// On a new node, forbid programs to copy to and from each other's memory: each program's own thread does it, slower
    #[arg(long)]
    no_direct_copies: bool,
}

impl Wanted {
    /// The options of the command line.
    pub fn options(self) -> NodeOptions {
        let no_direct_copies = self.no_direct_copies;
        let base = NodeOptions { vfs: self.vfs, no_direct_copies, ..NodeOptions::default() };
        self.identity.over(self.seen.over(base))
    }

    /// True if any option was given.
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
    /// `base` with the options of the command line.
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
    /// Proceed even while programs are on it; they continue on their own
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct NodeDir {
    /// Directory of the node; all programs run on it share one adapter [default: the one this program runs on, else one per user, in
    /// memory]
    #[arg(long = "node", value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl NodeDir {
    /// True if a node was named, or this program runs on one.
    pub fn is_named(&self) -> bool {
        self.dir.is_some() || std::env::var_os("IRONVERBS_NODE").is_some()
    }

    /// The named directory, that of the node this program was launched on, or the user's default.
    pub fn path(&self) -> PathBuf {
        let around = || std::env::var_os("IRONVERBS_NODE").map(PathBuf::from).filter(|dir| dir.is_absolute());
        self.dir.clone().or_else(around).unwrap_or_else(dir::default_dir)
    }
}
