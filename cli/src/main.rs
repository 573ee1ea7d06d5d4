//! `ironverbs`: RDMA programs on a simulated ConnectX, without the card.

mod options;
mod run;

use std::process::ExitCode;

use clap::Parser;
use options::{Command, Options};

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => return options::refuse(&e),
    };
    match options.command {
        Command::Run(run) => run::run(&run),
    }
}

/// Says on stderr, in one line, why the command failed.
fn fail(code: u8, why: impl std::fmt::Display) -> ExitCode {
    eprintln!("ironverbs: {why}");
    ExitCode::from(code)
}
