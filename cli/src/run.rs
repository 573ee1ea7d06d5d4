//! `ironverbs run`: turns into the program, on a node.

use std::env;
use std::process::ExitCode;

use node::launcher::{self, Launch, LaunchError, provider};
use node::runtime::NodeOptions;

use crate::options::Run;
use crate::{fail, place};

/// Exit status of failures that are the launcher's and not the program's.
const OURS: u8 = 125;

pub fn run(run: &Run) -> ExitCode {
    let Some((program, args)) = run.program.split_first() else {
        return fail(OURS, "no program named");
    };
    let ready = || -> Result<_, LaunchError> {
        // Before anything is made for it.
        launcher::find_program(program)?;
        let exe = env::current_exe().map_err(|e| LaunchError::Provider(e.to_string()))?;
        provider::find(&exe)
    };
    let provider = match ready() {
        Ok(provider) => provider,
        Err(e) => return fail(e.exit_code(), e),
    };
    let options =
        NodeOptions { vfs: run.vfs, no_direct_copies: run.no_direct_copies, ..NodeOptions::default() };
    let (node, devices) = match place::open(&run.node.path(), &run.identity.over(options)) {
        Ok(node) => (node.dir().to_path_buf(), node.devices()),
        Err(e) => return fail(OURS, e),
    };
    match (Launch { node, devices, provider, program: program.clone(), args: args.to_vec() }).exec() {
        Ok(never) => match never {},
        Err(e) => fail(e.exit_code(), e),
    }
}
