//! The program `ironverbs`, implemented in `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ironverbs_cli::main()
}
