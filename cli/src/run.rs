//! `ironverbs run`: turns into the program, on a node.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use node::devices::DeviceInfo;
use node::functions::functions;
use node::launcher::{self, Launch, LaunchError, dir, provider};
use node::place::Place;
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
    let places = match run.functions.places() {
        Ok(places) => places,
        Err(e) => return fail(OURS, e),
    };
    let (node, devices) = match places.is_empty() {
        true => match place::open(&run.node.path(), &run.identity.over(options)) {
            Ok(node) => (node.dir().to_path_buf(), node.devices()),
            Err(e) => return fail(OURS, e),
        },
        false => match elsewhere(run, places) {
            Ok(found) => found,
            Err(e) => return fail(OURS, e),
        },
    };
    match (Launch { node, devices, provider, program: program.clone(), args: args.to_vec() }).exec() {
        Ok(never) => match never {},
        Err(e) => fail(e.exit_code(), e),
    }
}

/// Functions that are no node's, and the directory where the provider's links stand all the same.
fn elsewhere(run: &Run, places: Vec<Place>) -> Result<(PathBuf, Vec<DeviceInfo>), String> {
    let dir = dir::claim(&run.node.path()).map_err(|e| e.to_string())?;
    let devices = functions(places).map_err(|e| e.to_string())?;
    Ok((dir, devices))
}
