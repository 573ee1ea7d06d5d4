//! `ironverbs run`: turns into the program, on a node.

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use node::launcher::{self, Launch, LaunchError, provider};
use node::runtime::{Node, NodeError, NodeOptions};

use crate::fail;
use crate::options::Run;

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
    let (node, vfs) = match open(&run.node.path(), &options) {
        Ok(node) => (node.dir().to_path_buf(), node.vfs()),
        Err(e) => return fail(OURS, e),
    };
    match (Launch { node, vfs, provider, program: program.clone(), args: args.to_vec() }).exec() {
        Ok(never) => match never {},
        Err(e) => fail(e.exit_code(), e),
    }
}

/// The node in `dir`. One that another version left behind, with no program on it any more, gives way to a new one. A
/// directory that was not there before is gone again if there is to be no node in it.
fn open(dir: &Path, options: &NodeOptions) -> Result<Arc<Node>, NodeError> {
    let was_there = dir.exists();
    let node = match Node::open_or_create(dir, options) {
        Err(NodeError::Version { .. }) => {
            Node::reset(dir, false)?;
            Node::open_or_create(dir, options)
        }
        other => other,
    };
    node.inspect_err(|_| {
        if !was_there && !dir.join("adapter").exists() {
            let _ = fs::remove_file(dir.join("parties"));
            // Fails, as it should, where somebody else has put something.
            let _ = fs::remove_dir(dir);
        }
    })
}
