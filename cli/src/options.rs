//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use node::launcher::dir;

/// RDMA programs on a simulated ConnectX, without the card.
#[derive(Parser)]
#[command(name = "ironverbs", version, about, arg_required_else_help = false)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a program so that it sees the node's devices: iron0 is the PF, iron1.. are its VFs
    Run(Run),
}

#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    pub node: NodeDir,
    /// Virtual functions of a new node
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(0..=127))]
    pub vfs: u8,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Args)]
pub struct NodeDir {
    /// Directory of the node; all programs run on it share one adapter [default: one per user, in memory]
    #[arg(long = "node", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl NodeDir {
    /// The directory named, or the user's own.
    pub fn path(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(dir::default_dir)
    }
}

/// Answers a command line that does not parse: help and version as asked for, else one line.
pub fn refuse(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:")).collect();
    let why = lines.into_iter().filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    crate::fail(2, format!("{} (see ironverbs --help)", why.trim_start_matches("error: ")))
}
