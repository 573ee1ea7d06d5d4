//! The program `ironverbs`; all it does is in `lib.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ironverbs_cli::main()
}
