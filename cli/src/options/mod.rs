//! The command line: here the commands and the small ones' options; what concerns a node, a function, or another kernel that is served
//! has a file of its own.

mod function;
mod machine;
mod node;
mod sim;
mod time;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueHint};

pub use self::function::{Bringup, Functions, Vf};
pub use self::machine::{Linux, PlugAt, Serve};
pub use self::node::{Capture, Identity, LookOptions, Node, NodeDir, Wanted, Watch, WireTrial};
pub use self::sim::{Pattern, Reaction, Sim, SimLook, SimNetwork, SimPlan, Trial};
pub use self::time::{ClockKind, Time, TimeRules};
use crate::say::say;

/// RDMA programs on a simulated ConnectX, without the card.
#[derive(Parser)]
#[command(name = "ironverbs", version = env!("IRONVERBS_VERSION"), about)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a program so that it sees the node's devices: iron0 is the PF, iron1.. are its VFs
    Run(Run),
    /// Show Debian's ib_read_lat running between two VFs
    Demo(Demo),
    /// Say what this host lacks and how to get it
    Doctor(LookOptions),
    /// Serve functions of a node as vfio-user devices, for QEMU's guests
    Serve(Serve),
    /// Start a Linux kernel, as a program of this host, that drives the node's PF and VFs with its own mlx5 driver
    Linux(Linux),
    /// Look at a node, or start it afresh
    #[command(subcommand)]
    Node(Node),
    /// Make virtual functions of a real card, and give functions to VFIO or back
    #[command(subcommand)]
    Vf(Vf),
    /// Go through a function step by step, and say which step fails and what it found
    Bringup(Bringup),
    /// Measure perftest on the node and UCX over shared memory side by side
    Bench(Bench),
    /// Run one of perftest's patterns in virtual time: what a ConnectX-5 would take, the same at every run
    #[command(subcommand)]
    Sim(Sim),
    /// Say which frames of a capture break a rule of the reliable connection
    Check {
        /// The capture, pcap or pcapng, of whoever sends: of this model, of rxe, of a card
        file: PathBuf,
        /// Frames that were sent may be missing
        #[arg(long)]
        lossy: bool,
    },
    /// Print what a driver sent to a function, or compare two such recordings
    #[command(subcommand)]
    Stream(Stream),
    /// Let container engines give a node's devices to containers
    #[command(subcommand)]
    Cdi(Cdi),
}

#[derive(Subcommand)]
pub enum Cdi {
    /// Describe the node's devices as podman, containerd, CRI-O and docker read it (Container Device Interface)
    Generate {
        #[command(flatten)]
        node: NodeDir,
        /// The file to write, such as /etc/cdi/ironverbs.json [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// What the devices are called behind ironverbs/, which tells the nodes of a host apart
        #[arg(long, value_name = "NAME", default_value = "function", value_parser = class)]
        class: String,
    },
    /// Show devices in a container that is being made; what `generate` has container runtimes call
    Hook {
        #[command(flatten)]
        node: NodeDir,
        /// A device to show in the container, by its name or number, several times for several
        #[arg(long = "device", value_name = "DEVICE", required = true)]
        devices: Vec<String>,
        /// Tell the container's supervisor, which `runtime` has started
        #[arg(long)]
        supervised: bool,
    },
    /// Be a container engine's runtime: show devices to containers that a device plugin gave functions, then become the runtime
    Runtime {
        #[command(flatten)]
        node: NodeDir,
        /// The runtime to become
        #[arg(long, value_name = "PROGRAM", default_value = "runc", value_hint = ValueHint::CommandName)]
        runtime: PathBuf,
        /// Where device files are told apart, for an engine outside of the view in which its device plugin runs: a copy of /sys/class/infiniband_verbs there
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        view: Option<PathBuf>,
        /// What the engine asks of it
        #[arg(last = true, value_name = "ARGUMENT")]
        args: Vec<OsString>,
    },
}

/// A class of the Container Device Interface.
fn class(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let fits = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(plain);
    fits.then(|| text.into())
        .ok_or_else(|| format!("expected a name of letters, digits, - and _ such as blue, found '{text}'"))
}

#[derive(Subcommand)]
pub enum Stream {
    /// Print a recording of `serve --record` or `bringup --record` with the names of the data sheet
    Show {
        /// The recording
        file: PathBuf,
        /// Only this function
        #[arg(long, value_name = "N")]
        function: Option<u8>,
        /// Values as they were, not named by order
        #[arg(long, conflicts_with = "compact")]
        raw: bool,
        /// Without doorbells and what differs from run to run, and with repetition collapsed
        #[arg(long)]
        compact: bool,
    },
    /// Compare two recordings, or what `show --compact` printed of them; fails if they differ
    Diff {
        /// The one to compare with
        a: PathBuf,
        /// The other
        b: PathBuf,
        /// Only this function
        #[arg(long, value_name = "N")]
        function: Option<u8>,
        /// Compare which commands, requests and fields there are, and in which order they first come, not line by line
        #[arg(long)]
        words: bool,
        /// As --words, less the differences listed in this file; lines of it that are not needed fail as well
        #[arg(long, value_name = "LIST")]
        allow: Option<PathBuf>,
    },
}

#[derive(Args)]
pub struct Demo {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub identity: Identity,
}

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    pub node: NodeDir,
    /// How often every test is run, in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Fail when a floor is missed
    #[arg(long)]
    pub check: bool,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub node: NodeDir,
    #[command(flatten)]
    pub wanted: Wanted,
    /// Another node whose devices the program sees too; for several, several times. One that is not there is made like the first
    #[arg(long = "adapter", value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["bdf", "vfio_user"])]
    pub adapters: Vec<PathBuf>,
    #[command(flatten)]
    pub functions: Functions,
    #[command(flatten)]
    pub time: Time,
    /// Let the program register more memory than its RLIMIT_MEMLOCK allows (ulimit -l); a card's driver never does without CAP_IPC_LOCK
    #[arg(long)]
    pub no_memlock: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

/// Answers a command line that does not parse: help and version as asked for, help where nothing was asked, else one line.
pub fn refuse(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say!("{e}");
        return ExitCode::SUCCESS;
    }
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|l| !l.is_empty()).collect();
    let why = lines.join(" ");
    crate::say::fail(2, format!("{} (see ironverbs --help)", why.trim_start_matches("error: ")))
}
