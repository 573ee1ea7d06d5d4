//! Options for adapters: selection, creation, and operations.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::time::TimeRules;
use clap::{Args, Subcommand, ValueHint};
use devmodel::wire::Faults;
use devmodel::{LinkLayer, strict::Strict};
use node::dir;
use node::naming::{Bus, Name};
use node::{FunctionAddress, NodeOptions};

#[derive(Subcommand)]
pub enum Adapter {
    /// Create an adapter without running anything on it, or add VFs to one
    Create(Create),
    /// Show an adapter's programs and functions, and their counters
    #[command(alias = "inspect")]
    Status {
        #[command(flatten)]
        adapter: Subject,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Set the IP address of a device, which becomes its GID 1
    Address(SetAddress),
    /// Write the frames on an adapter's wire to a file, as long as this runs
    Capture(Capture),
    /// Apply faults to the frames on an adapter's wire, as long as this runs
    #[command(alias = "faults")]
    Fault(WireFaults),
    /// Delete an adapter
    #[command(aliases = ["reset", "rm"])]
    Delete(Delete),
    /// Advance an adapter's virtual time for its programs, as long as there are any; `run --clock timed` starts it
    #[command(hide = true)]
    Conduct {
        #[command(flatten)]
        node: NodeDir,
        #[command(flatten)]
        rules: TimeRules,
        /// Fault plan (TOML)
        #[arg(long, value_name = "FILE")]
        fault: Option<PathBuf>,
    },
}

/// Options of commands that only show something.
#[derive(Args)]
pub struct Output {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// The former spelling of `-o json`.
    #[arg(long, hide = true)]
    json: bool,
}

/// The format of output.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people
    Table,
    /// JSON, for programs
    Json,
}

impl Output {
    /// True if the output is to be JSON.
    pub fn is_json(&self) -> bool {
        self.json || self.output == Format::Json
    }
}

/// Options for repeated output.
#[derive(Args)]
#[group(id = "watching")]
pub struct Watch {
    /// Repeat every so many seconds, with rates, until a signal arrives; JSON is one line each time
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
pub struct WireFaults {
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
    pub adapter: Subject,
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    pub seen: Seen,
    /// Number of VFs [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    pub vfs: Option<u8>,
    /// Let all users of this group use the adapter; only root can share one
    #[arg(long, value_name = "NAME or NUMBER")]
    pub group: Option<String>,
}

/// Properties that are fixed when an adapter is created; specifying others for an existing one is an error.
#[derive(Args, Clone, Default)]
pub struct Identity {
    /// Link layer of the ports [default: as it has, ethernet if it is new]
    #[arg(long, value_enum)]
    link_layer: Option<Layer>,
    /// Number that distinguishes adapters on one wire: part of every MAC and GUID [default: as it has, 0 if it is new]
    #[arg(long, alias = "node-id", value_name = "N")]
    id: Option<u16>,
    /// Faults of frames between the adapter's devices, such as drop=1%,duplicate=0.1%,seed=7 [default: as it has, none if it is new]; in
    /// virtual time also the file of a plan
    #[arg(long, aliases = ["wire-faults", "faults"], value_name = "SPEC or FILE")]
    fault: Option<Fault>,
    /// Make the adapter as strict as a card, in every known respect or in some: owner=pf, pages=real, events=strict, uid=strict,
    /// reserved=zero, slow=FACTOR, ids=CARD (cx4lx, cx5, cx6, cx6dx, cx7, bf2), separated by commas [default: as it is, not at all if it is
    /// new]
    #[arg(long, value_name = "SWITCHES", num_args = 0..=1, default_missing_value = "all")]
    strict: Option<Strict>,
}

/// Faults of frames: random ones, or those of a plan.
#[derive(Clone)]
pub enum Fault {
    /// Such as `drop=1%,seed=7`.
    Spec(Faults),
    /// The file of a plan.
    Plan(PathBuf),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        if path.extension().is_some_and(|end| end == "toml") || path.is_file() {
            return Ok(Self::Plan(path.into()));
        }
        text.parse().map(Self::Spec).map_err(|e| format!("{e}, or the file of a plan"))
    }
}

/// Names and addresses that programs see on the simulated machine; fixed when an adapter is created.
#[derive(Args, Clone, Copy, Default)]
pub struct Seen {
    /// Verbs name of the PF, such as mlx5_0; its VFs have the following numbers [default: as it has, iron0 if it is new]
    #[arg(long)]
    name: Option<Name>,
    /// PCI address of the PF, such as 0000:3b:00.0; its VFs follow [default: as it has, 0000:c1:00.0 if it is new]
    #[arg(long = "pci", value_name = "ADDRESS")]
    bus: Option<Bus>,
    /// NUMA node of the adapter [default: as it has, none if it is new]
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

/// The adapter of a command that creates it if it is missing.
#[derive(Args, Clone, Default)]
pub struct Wanted {
    #[command(flatten)]
    pub identity: Identity,
    #[command(flatten)]
    seen: Seen,
    /// Number of VFs [default: as many as it has, 8 if it is new]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=127))]
    vfs: Option<u8>,
    /// Forbid programs to copy to and from each other's memory: each program's own thread does it, slower
    #[arg(long)]
    no_direct_copies: bool,
}

impl Wanted {
    /// An adapter with this number.
    pub fn numbered(id: Option<u16>) -> Self {
        Self { identity: Identity { id, ..Identity::default() }, ..Self::default() }
    }

    /// The options of the command line.
    pub fn options(&self) -> NodeOptions {
        let no_direct_copies = self.no_direct_copies;
        let base = NodeOptions { vfs: self.vfs, no_direct_copies, ..NodeOptions::default() };
        self.identity.over(self.seen.over(base))
    }

    /// True if any option was given.
    pub fn is_any(&self) -> bool {
        let Identity { link_layer, id, fault, strict } = &self.identity;
        let Seen { name, bus, numa } = self.seen;
        self.vfs.is_some()
            || self.no_direct_copies
            || link_layer.is_some()
            || id.is_some()
            || fault.is_some()
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
    /// The plan of faults, if one is named.
    pub fn plan(&self) -> Option<&Path> {
        match &self.fault {
            Some(Fault::Plan(path)) => Some(path),
            _ => None,
        }
    }

    /// Refuses a plan, for commands that do not run programs in virtual time.
    ///
    /// # Errors
    /// One is named.
    pub fn without_plan(&self) -> Result<(), String> {
        let refused = |path: &Path| {
            format!(
                "--fault {}: a plan takes `run --clock timed`, or `adapter fault` while programs run; expected one like drop=1%",
                path.display()
            )
        };
        self.plan().map_or(Ok(()), |path| Err(refused(path)))
    }

    /// `base` with the options of the command line.
    pub fn over(&self, base: NodeOptions) -> NodeOptions {
        let link_layer = self.link_layer.map(|layer| match layer {
            Layer::Ethernet => LinkLayer::Ethernet,
            Layer::Infiniband => LinkLayer::Infiniband,
        });
        NodeOptions {
            link_layer,
            node_id: self.id,
            faults: match self.fault {
                Some(Fault::Spec(faults)) => Some(faults),
                _ => None,
            },
            strict: self.strict,
            ..base
        }
    }
}

#[derive(Args)]
pub struct Delete {
    #[command(flatten)]
    pub adapter: Subject,
    /// Proceed even while programs are on it; they continue on their own
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct NodeDir {
    /// Directory of the adapter [default: that of the adapter this program runs on, else one per user, in memory]
    #[arg(long = "adapter", alias = "node", value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl NodeDir {
    /// The named directory, that of the adapter this program was launched on, or the user's default.
    pub fn path(&self) -> PathBuf {
        path(self.dir.as_deref())
    }
}

/// The adapter that a command is about.
#[derive(Args)]
pub struct Subject {
    /// Directory of the adapter [default: that of the adapter this program runs on, else one per user, in memory]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "adapter")]
    dir: Option<PathBuf>,
    /// The same, as for other commands.
    #[arg(long, alias = "node", value_name = "DIR", hide = true)]
    adapter: Option<PathBuf>,
}

impl Subject {
    /// The directory, as for [`NodeDir::path`].
    pub fn path(&self) -> PathBuf {
        path(self.dir.as_deref().or(self.adapter.as_deref()))
    }
}

/// The adapters of a machine.
#[derive(Args)]
pub struct NodeDirs {
    /// Directory of an adapter; may be repeated. One that is missing is created, like the first [default: that of the adapter this program
    /// runs on, else one per user, in memory]
    #[arg(long = "adapter", alias = "node", value_name = "DIR", value_hint = ValueHint::DirPath)]
    dirs: Vec<PathBuf>,
}

impl NodeDirs {
    /// True if an adapter was named, or this program runs on one.
    pub fn is_named(&self) -> bool {
        !self.dirs.is_empty() || std::env::var_os("IRONVERBS_NODE").is_some()
    }

    /// The first directory, as for [`NodeDir::path`].
    pub fn path(&self) -> PathBuf {
        path(self.dirs.first().map(PathBuf::as_path))
    }

    /// The directories of the others.
    pub fn others(&self) -> &[PathBuf] {
        self.dirs.get(1..).unwrap_or_default()
    }
}

fn path(named: Option<&Path>) -> PathBuf {
    let around = || std::env::var_os("IRONVERBS_NODE").map(PathBuf::from).filter(|dir| dir.is_absolute());
    named.map(Path::to_path_buf).or_else(around).unwrap_or_else(dir::default_dir)
}
