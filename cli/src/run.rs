//! `ironverbs run`: turns into the program, on a node.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use launcher::{Launch, LaunchError, provider};
use node::devices::DeviceInfo;
use node::dir;
use node::functions::functions;
use node::place::Place;

use crate::options::Run;
use crate::pod::Pod;
use crate::{place, say::fail};

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
    let no_pod = run.node.is_named() || run.wanted.is_any();
    let places = match run.functions.places(&Pod::here(), no_pod) {
        Ok(places) => places,
        Err(e) => return fail(OURS, e),
    };
    let (node, devices) = match places.is_empty() {
        true => match place::open(&run.node.path(), &run.wanted.options()) {
            Ok(node) => (node.dir().to_path_buf(), node.devices()),
            Err(e) => return fail(OURS, e),
        },
        false => match elsewhere(run, places) {
            Ok(found) => found,
            Err(e) => return fail(OURS, e),
        },
    };
    if let Some(hint) = hint(args, &devices) {
        eprintln!("ironverbs: {hint}");
    }
    match (Launch { node, devices, provider, program: program.clone(), args: args.to_vec() }).exec() {
        Ok(never) => match never {},
        Err(e) => fail(e.exit_code(), e),
    }
}

/// What to say of a real card's device in the program's arguments, such as `-d mlx5_0`, that will not be there.
fn hint(args: &[OsString], devices: &[DeviceInfo]) -> Option<String> {
    let name = args.iter().filter_map(|arg| arg.to_str()).find_map(missing_card)?;
    let (first, last) = (devices.first()?, devices.last()?);
    Some(format!("there is no device {name} here; the program sees {} to {}", first.name, last.name))
}

/// The name of a device of the mlx4 or mlx5 driver that an argument ends with (`mlx5_0`, `-dmlx5_0`, `--ib-dev=mlx5_0`, with
/// or without a port behind a colon), if this host has none of that name.
fn missing_card(arg: &str) -> Option<&str> {
    let name = &arg[arg.find("mlx5_").or_else(|| arg.find("mlx4_"))?..];
    let name = name.split(':').next()?;
    let number = &name["mlx5_".len()..];
    let is_name = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (is_name && !Path::new("/sys/class/infiniband").join(name).exists()).then_some(name)
}

/// Functions that are no node's, and the directory where the provider's links stand all the same.
fn elsewhere(run: &Run, places: Vec<Place>) -> Result<(PathBuf, Vec<DeviceInfo>), String> {
    let dir = dir::claim(&run.node.path()).map_err(|e| e.to_string())?;
    let devices = functions(places).map_err(|e| e.to_string())?;
    Ok((dir, devices))
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmodel::Config;

    #[test]
    fn devices_of_a_card_that_is_not_there_are_hinted_at() {
        let devices = node::devices::devices(8, &Config::default());
        let hint = |args: &[&str]| hint(&args.iter().map(OsString::from).collect::<Vec<_>>(), &devices);
        for args in [&["-d", "mlx5_90"][..], &["-x", "1", "-dmlx5_90"], &["--ib-dev=mlx5_90:1", "127.0.0.1"]]
        {
            let said = hint(args).expect("a hint");
            assert!(said.contains("no device mlx5_90 ") && said.contains("iron0 to iron8"), "{said}");
        }
        for args in [&["-d", "iron1"][..], &["mlx5_x", "mlx5_", "libmlx5.so", "mlx5_core.c"], &[]] {
            assert_eq!(hint(args), None);
        }
    }
}
