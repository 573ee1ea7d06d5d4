//! `ironverbs run`: execs the program on an adapter.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use devmodel::LinkLayer;
use launcher::{Launch, LaunchError, provider};
use node::devices::DeviceInfo;
use node::dir;
use node::functions::functions;
use node::place::Place;
use node::timed::is_conducted;

use crate::options::{ClockKind, Run};
use crate::pod::Pod;
use crate::{nodes, say::fail, timed};

/// Exit status for failures of the launcher rather than the program.
pub const OURS: u8 = 125;

pub fn run(run: &Run) -> ExitCode {
    let Some((program, args)) = run.program.split_first() else {
        return fail(OURS, "no program named");
    };
    let ready = || -> Result<_, LaunchError> {
        // Before anything is created for it.
        launcher::find_program(program)?;
        let exe = env::current_exe().map_err(|e| LaunchError::Provider(e.to_string()))?;
        provider::find(&exe)
    };
    let provider = match ready() {
        Ok(provider) => provider,
        Err(e) => return fail(e.exit_code(), e),
    };
    if run.time.clock == ClockKind::Real {
        if let Err(why) = run.wanted.identity.without_plan() {
            return fail(OURS, why);
        }
    }
    let no_pod = run.nodes.is_named() || run.wanted.is_any();
    let places = match run.functions.places(&Pod::here(), no_pod) {
        Ok(places) => places,
        Err(e) => return fail(OURS, e),
    };
    let (node, devices) = match places.is_empty() {
        true => match nodes::open(&run.nodes.path(), &run.wanted.options(), run.nodes.others()) {
            Ok(nodes) => {
                (nodes[0].dir().to_path_buf(), nodes.iter().flat_map(|node| node.devices()).collect())
            }
            Err(e) => return fail(OURS, e),
        },
        false if !run.nodes.others().is_empty() => {
            return fail(OURS, "expected one --adapter at most beside --vfio and --vfio-user, found several");
        }
        false => match elsewhere(run, places) {
            Ok(found) => found,
            Err(e) => return fail(OURS, e),
        },
    };
    let clocks = match in_time(run, &node, &devices) {
        Ok(clocks) => clocks,
        Err(e) => return fail(OURS, e),
    };
    if let Some(hint) = hint(args, &devices) {
        eprintln!("ironverbs: {hint}");
    }
    let (program, args, memlock) = (program.clone(), args.to_vec(), !run.no_memlock);
    let launch = Launch { node, devices, provider, program, args, memlock, clocks };
    match launch.exec() {
        Ok(never) => match never {},
        Err(e) => fail(e.exit_code(), e),
    }
}

/// Starts virtual time on the node if requested. Returns the library to preload into the program then.
fn in_time(run: &Run, node: &Path, devices: &[DeviceInfo]) -> Result<Option<PathBuf>, String> {
    if run.time.clock == ClockKind::Real {
        return match is_conducted(node) {
            true => Err(format!(
                "the adapter in {} is in virtual time: programs on it are run with --clock timed",
                node.display()
            )),
            false => Ok(None),
        };
    }
    if !run.nodes.others().is_empty() {
        return Err(
            "--clock timed: expected one --adapter, for each has a time of its own, found several".into()
        );
    }
    if devices.iter().any(|device| device.node().is_none()) {
        return Err("--clock timed: expected an adapter, for no other function has virtual time".into());
    }
    let program = run.program.first().and_then(|name| launcher::find_program(name).ok());
    if let Some(program) = program.filter(|program| is_static(program)) {
        return Err(format!(
            "--clock timed: {} is linked without shared libraries, so it would see this machine's time",
            program.display()
        ));
    }
    let exe = env::current_exe().map_err(|e| format!("cannot find this command's file: {e}"))?;
    let clocks = provider::clocks(&exe).map_err(|e| e.to_string())?;
    let link_layer = devices.first().map_or(LinkLayer::Ethernet, |device| device.link_layer);
    timed::begin(node, &run.time.rules, run.wanted.identity.plan(), link_layer).map(|()| Some(clocks))
}

/// True if a file is a 64-bit program without an interpreter (ELF-64: `e_phoff`, `e_phentsize`, `e_phnum`, PT_INTERP).
fn is_static(program: &Path) -> bool {
    let bytes = std::fs::read(program).unwrap_or_default();
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = bytes.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return false;
    }
    let (Some(from), Some(size), Some(count)) = (number(0x20, 8), number(0x36, 2), number(0x38, 2)) else {
        return false;
    };
    let kind = |n: usize| number(from.checked_add(n.checked_mul(size)?)?, 4);
    (0..count).all(|n| kind(n) != Some(3))
}

/// A hint if the program's arguments name a physical device, such as `-d mlx5_0`, that the program will not see.
fn hint(args: &[OsString], devices: &[DeviceInfo]) -> Option<String> {
    let name = args.iter().filter_map(|arg| arg.to_str()).find_map(missing_card)?;
    let first = devices.first()?;
    let last = devices.iter().rfind(|device| device.node() == first.node())?;
    Some(format!(
        "there is no device {name} here; the program sees {} to {} (others: `ironverbs adapter create --name`)",
        first.name, last.name
    ))
}

/// The mlx4 or mlx5 device name that an argument ends with (`mlx5_0`, `-dmlx5_0`, `--ib-dev=mlx5_0`, with or without a port after a colon),
/// if this host has no such device.
fn missing_card(arg: &str) -> Option<&str> {
    let name = &arg[arg.find("mlx5_").or_else(|| arg.find("mlx4_"))?..];
    let name = name.split(':').next()?;
    let number = &name["mlx5_".len()..];
    let is_name = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (is_name && !Path::new("/sys/class/infiniband").join(name).exists()).then_some(name)
}

/// The devices of functions that belong to no node, and the directory that nevertheless lists the processes that share a user namespace.
fn elsewhere(run: &Run, places: Vec<Place>) -> Result<(PathBuf, Vec<DeviceInfo>), String> {
    let dir = dir::claim(&run.nodes.path()).map_err(|e| e.to_string())?;
    let devices = functions(places).map_err(|e| e.to_string())?;
    Ok((dir, devices))
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmodel::Config;

    #[test]
    fn devices_of_a_card_that_is_not_there_are_hinted_at() {
        let devices = node::devices::devices(Path::new("/n"), 8, &Config::default());
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

    #[test]
    fn programs_without_a_loader_are_told_apart() {
        let program = |segments: &[u32]| {
            let mut bytes = vec![0; 64];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            (bytes[0x20], bytes[0x36], bytes[0x38]) = (64, 56, segments.len() as u8);
            for kind in segments {
                bytes.extend([&kind.to_le_bytes()[..], &[0; 52]].concat());
            }
            bytes
        };
        let path = &testkit::Scratch::new().0;
        for (bytes, expected) in [
            (program(&[1, 2]), true),
            (program(&[6, 3, 1]), false),
            (b"#!/bin/sh\n".to_vec(), false),
            (program(&[1, 3])[..70].to_vec(), true),
            (Vec::new(), false),
        ] {
            std::fs::write(path, &bytes).unwrap();
            assert_eq!(is_static(path), expected, "{} bytes", bytes.len());
        }
        assert!(!is_static(Path::new("/bin/sh")));
    }
}
