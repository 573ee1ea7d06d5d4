//! `ironverbs`: RDMA programs on a simulated ConnectX, without the card.
//!
//! ```text
//! ironverbs run -- ib_write_bw -d iron1 -x 1
//! ironverbs run -- ib_write_bw -d iron2 -x 1 127.0.0.2
//! ironverbs node status
//! ```
//!
//! `options` is the command line, followed by one file per command. The work is done in the crates below: `node`, `driver`, `devmodel`.
//! rustdoc cannot run a program's examples; `tests/command/run.rs` runs the commands.

mod bench;
mod bringup;
mod check;
mod container;
mod demo;
mod doctor;
mod line;
mod linux;
mod node_state;
mod node_watch;
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
mod trial;
mod vf;

use std::{panic::AssertUnwindSafe, process::ExitCode};

use clap::{CommandFactory, Parser};
use devmodel::region::NoAddresses;
use options::{Command, Options};

/// The command line's clap definition, which manual pages and shell completion are generated from (`examples/manual/`).
pub fn definition() -> clap::Command {
    Options::command()
}

/// The whole command: executes this process's arguments.
pub fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => return options::refuse(&e),
    };
    let refused = if matches!(options.command, Command::Run(_)) { run::OURS } else { 1 };
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| carry_out(options.command)));
    done.unwrap_or_else(|payload| match payload.is::<NoAddresses>() {
        true => {
            eprintln!("ironverbs: no addresses are left to map the node: is there a limit (ulimit -v)?");
            ExitCode::from(refused)
        }
        false => std::panic::resume_unwind(payload),
    })
}

fn carry_out(command: Command) -> ExitCode {
    match command {
        Command::Run(run) => run::run(&run),
        Command::Demo(demo) => demo::demo(&demo),
        Command::Doctor(doctor) => doctor::doctor(&doctor),
        Command::Node(node) => node_state::node(&node),
        Command::Bringup(bringup) => bringup::bringup(&bringup),
        Command::Bench(bench) => bench::bench(&bench),
        Command::Serve(serve) => serve::serve(&serve),
        Command::Linux(linux) => linux::linux(&linux),
        Command::Sim(sim) => sim::sim(&sim),
        Command::Check { file, lossy } => check::check(&file, lossy),
        Command::Stream(command) => stream_files::stream(&command),
        Command::Vf(command) => vf::vf(&command),
        Command::Cdi(command) => container::cdi(&command),
    }
}
