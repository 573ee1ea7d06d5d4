//! `ironverbs run`: turns into the program, on a node.

use std::env;
use std::process::ExitCode;

use node::launcher::{self, Launch, LaunchError, dir, provider};

use crate::fail;
use crate::options::Run;

/// Exit status of failures that are the launcher's and not the program's.
const OURS: u8 = 125;

pub fn run(run: &Run) -> ExitCode {
    let Some((program, args)) = run.program.split_first() else {
        return fail(OURS, "no program named");
    };
    let launch = || -> Result<_, LaunchError> {
        let exe = env::current_exe().map_err(|e| LaunchError::Provider(e.to_string()))?;
        let provider = provider::find(&exe)?;
        // Before anything is made for it.
        launcher::find_program(program)?;
        let node = dir::claim(&run.node.path())?;
        Launch { node, vfs: run.vfs, provider, program: program.clone(), args: args.to_vec() }.exec()
    };
    match launch() {
        Ok(never) => match never {},
        Err(e) => fail(e.exit_code(), e),
    }
}
