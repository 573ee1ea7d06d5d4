//! `ironverbs`: RDMA programs on a simulated ConnectX, without the card.
//!
//! ```text
//! ironverbs run -- ib_write_bw -d iron1 -x 1
//! ironverbs run -- ib_write_bw -d iron2 -x 1 127.0.0.2
//! ironverbs adapter status
//! ```
//!
//! `options` is the command line, followed by one file per command. The work is done in the crates below: `node`, `driver`, `devmodel`.
//! rustdoc cannot run a program's examples; `tests/command/run.rs` runs the commands.

mod adapter;
mod bench;
mod bringup;
mod check;
mod container;
mod demo;
mod doctor;
mod faults;
pub mod help;
mod line;
mod linux;
mod nodes;
mod oci_runtime;
mod options;
mod pair;
mod perftest;
mod place;
mod pod;
mod run;
mod say;
mod serve;
mod sim;
mod stream_files;
mod timed;
mod vf;
mod watch;

use std::{panic::AssertUnwindSafe, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};
use devmodel::region::NoAddresses;
use options::{Command, Options, Pcap};

/// The command line's clap definition, which manual pages and shell completion are generated from (`examples/manual.rs`).
pub fn definition() -> clap::Command {
    help::attach(Options::command())
}

/// The whole command: executes this process's arguments.
pub fn main() -> ExitCode {
    let parsed = definition().try_get_matches().and_then(|found| Options::from_arg_matches(&found));
    let options = match parsed {
        Ok(options) => options,
        Err(e) => return options::refuse(&e),
    };
    let refused = if matches!(options.command, Command::Run(_)) { run::OURS } else { 1 };
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| carry_out(options.command)));
    done.unwrap_or_else(|payload| match payload.is::<NoAddresses>() {
        true => {
            eprintln!("ironverbs: no addresses are left to map the adapter: is there a limit (ulimit -v)?");
            ExitCode::from(refused)
        }
        false => std::panic::resume_unwind(payload),
    })
}

fn carry_out(command: Command) -> ExitCode {
    match command {
        Command::Run(run) => run::run(&run),
        Command::Demo(demo) => demo::demo(&demo),
        Command::Doctor { node, output } => doctor::doctor(&node.path(), output.is_json()),
        Command::Adapter(adapter) => adapter::adapter(&adapter),
        Command::Bringup(bringup) => bringup::bringup(&bringup),
        Command::Bench(bench) => bench::bench(&bench),
        Command::Serve(serve) => serve::serve(&serve),
        Command::Link(link) => serve::link(link),
        Command::Linux(linux) => linux::linux(&linux),
        Command::Sim(sim) => sim::sim(&sim),
        Command::Pcap(Pcap::Check(check)) | Command::Check(check) => check::check(&check.file, check.lossy),
        Command::Trace(command) => stream_files::trace(&command),
        Command::Vf(command) => vf::vf(&command),
        Command::Cdi(command) => container::cdi(&command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut definition(), "ironverbs", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}
