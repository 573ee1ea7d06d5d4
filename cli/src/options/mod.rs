//! The command line: the commands, and the options of the small ones. Options for nodes, for functions, and for serving another kernel have
//! files of their own.

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
use clap_complete::Shell;

pub use self::function::{Bringup, Functions, Vf};
pub use self::machine::{Link, Linux, PlugAt, Serve};
pub use self::node::{Adapter, Capture, Identity, NodeDir, NodeDirs, Output, Wanted, Watch, WireFaults};
pub use self::sim::{Pattern, Reaction, Sim, SimLook, SimNetwork, SimPlan};
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
    /// Run a program that sees the adapter's devices: iron0 is the PF, iron1.. are its VFs
    Run(Run),
    /// Show Debian's ib_read_lat running between two VFs
    Demo(Demo),
    /// Report what this host lacks and how to get it
    Doctor {
        #[command(flatten)]
        node: NodeDir,
        #[command(flatten)]
        output: Output,
    },
    /// Create, show and delete adapters, and act on their wire
    #[command(subcommand, alias = "node")]
    Adapter(Adapter),
    /// Serve an adapter's functions as vfio-user devices to QEMU guests
    Serve(Serve),
    /// Connect an adapter's wire to other adapters, hosts and kernels
    Link(Link),
    /// Start a Linux kernel, as a program of this host, that drives the adapter's PF and VFs with its own mlx5 driver
    Linux(Linux),
    /// Create and delete virtual functions of a physical card, and bind functions to VFIO or back
    #[command(subcommand)]
    Vf(Vf),
    /// Bring up a function step by step, and report the step that fails and what it found
    Bringup(Bringup),
    /// Measure perftest on the adapter and UCX over shared memory side by side
    Bench(Bench),
    /// Run one of perftest's patterns in virtual time: the time a ConnectX-5 would take, the same in every run
    #[command(subcommand)]
    Sim(Sim),
    /// Read captures of RoCE v2 frames
    #[command(subcommand)]
    Pcap(Pcap),
    /// The former name of `pcap check`.
    #[command(hide = true)]
    Check(Check),
    /// Print what a driver sent to a function, or compare two such recordings
    #[command(subcommand, alias = "stream")]
    Trace(Trace),
    /// Let container engines add an adapter's devices to containers
    #[command(subcommand)]
    Cdi(Cdi),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Subcommand)]
pub enum Pcap {
    /// Report the frames of a capture that break a rule of the reliable connection
    Check(Check),
}

#[derive(Args)]
pub struct Check {
    /// The capture, pcap or pcapng, of any sender: this model, rxe, a card
    pub file: PathBuf,
    /// Frames may be missing from the capture
    #[arg(long)]
    pub lossy: bool,
}

#[derive(Subcommand)]
pub enum Cdi {
    /// Describe the adapter's devices for podman, containerd, CRI-O and docker (Container Device Interface)
    Generate {
        #[command(flatten)]
        node: NodeDir,
        /// File to write, such as /etc/cdi/ironverbs.json [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Device class after ironverbs/, which distinguishes the adapters of a host
        #[arg(long, value_name = "NAME", default_value = "function", value_parser = class)]
        class: String,
    },
    /// Show devices in a container that is being created; container runtimes call this as `generate` specifies
    #[command(hide = true)]
    Hook {
        #[command(flatten)]
        node: NodeDir,
        /// Device to show in the container, by name or number; may be repeated
        #[arg(long = "device", value_name = "DEVICE", required = true)]
        devices: Vec<String>,
        /// Notify the container's supervisor, which `runtime` has started
        #[arg(long)]
        supervised: bool,
    },
    /// Act as a container engine's runtime: show devices in containers that a device plugin gave functions, then exec the runtime
    Runtime {
        #[command(flatten)]
        node: NodeDir,
        /// The runtime to exec
        #[arg(long, value_name = "PROGRAM", default_value = "runc", value_hint = ValueHint::CommandName)]
        runtime: PathBuf,
        /// Identify device files in this copy of /sys/class/infiniband_verbs, for an engine outside the view of its device plugin
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        view: Option<PathBuf>,
        /// The engine's arguments for it
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
pub enum Trace {
    /// Print a recording of `serve --record` or `bringup --record` with the names of the data sheet
    Show {
        /// The recording
        file: PathBuf,
        /// Print only this function
        #[arg(long, value_name = "N")]
        function: Option<u8>,
        /// Print original values instead of names by order
        #[arg(long, conflicts_with = "compact")]
        raw: bool,
        /// Omit doorbells and values that differ from run to run, and collapse repetitions
        #[arg(long)]
        compact: bool,
    },
    /// Compare two recordings, or outputs of `show --compact`; fail if they differ
    Diff {
        /// The reference
        a: PathBuf,
        /// The one to compare
        b: PathBuf,
        /// Compare only this function
        #[arg(long, value_name = "N")]
        function: Option<u8>,
        /// Compare the sets of commands, requests and fields and the order in which they first appear, instead of lines
        #[arg(long)]
        words: bool,
        /// Like --words, except for the differences listed in this file; unneeded lines in it are errors, too
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
    /// Number of rounds of all tests
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Fail if a limit is missed
    #[arg(long)]
    pub check: bool,
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub nodes: NodeDirs,
    /// Let the program register more memory than its RLIMIT_MEMLOCK allows (ulimit -l); a card's driver never does without CAP_IPC_LOCK
    #[arg(long)]
    pub no_memlock: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
    #[command(flatten, next_help_heading = "Options of the adapter, fixed when it is created")]
    pub wanted: Wanted,
    #[command(
        flatten,
        next_help_heading = "Functions of a card or behind a socket, instead of the adapter's"
    )]
    pub functions: Functions,
    #[command(flatten, next_help_heading = "Time")]
    pub time: Time,
}

/// Handles a command line that does not parse: prints help and version on request, help if there are no arguments, otherwise a one-line
/// error.
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
