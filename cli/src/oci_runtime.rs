//! `ironverbs cdi runtime`: device plugins of Kubernetes answer with device files and variables, not with names of the Container Device
//! Interface. Where a container is made that was given our functions so, its configuration gets what `ironverbs cdi generate` says of them
//! before the runtime proper reads it. All else passes through.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use node::devices::DeviceInfo;
use node::place::Place;
use serde_json::{Value, json};

use crate::container;
use crate::options::NodeDir;

/// Options before the command that have their value behind them, of runc and crun.
const WITH_VALUES: [&str; 6] = ["--log", "--log-format", "--log-level", "--root", "--criu", "--rootless"];
/// How the names of variables begin that say which PCI functions a plugin gave.
const PCI_DEVICES: &str = "PCIDEVICE_";
/// Where files of verbs devices are.
const FILES: &str = "/dev/infiniband";
/// Major and minor number of /dev/null, which our files are.
const NULL: (u64, u64) = (1, 3);

/// Becomes `runtime` with `args`, once the container's configuration has our devices. Their files are told apart as in `view`, or as this
/// process sees them. Returns only what went wrong.
pub fn runtime(node: &NodeDir, runtime: &Path, view: Option<&Path>, args: &[OsString]) -> Result<(), String> {
    if let Some(bundle) = bundle(args) {
        let file = bundle.join("config.json");
        // What is wrong with a bundle the runtime says best.
        if let Ok(config) = File::open(&file) {
            let mut config = container::read(config, &file.display().to_string())?;
            if give(node, view, &mut config)? {
                let text = config.to_string();
                container::replace(&file, &text)
                    .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
            }
        }
    }
    Err(format!("cannot run {}: {}", runtime.display(), Command::new(runtime).args(args).exec()))
}

/// The folder of the container that `args` make, if they make one.
fn bundle(args: &[OsString]) -> Option<PathBuf> {
    let mut rest = args.iter();
    let command = loop {
        let word = rest.next()?;
        match word.to_str() {
            Some(option) if WITH_VALUES.contains(&option) => _ = rest.next(),
            Some(option) if option.starts_with('-') => {}
            _ => break word,
        }
    };
    if !["create", "run"].iter().any(|makes| command == makes) {
        return None;
    }
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        if text == "--bundle" || text == "-b" {
            return rest.next().map(PathBuf::from);
        }
        if let Some(dir) = text.strip_prefix("--bundle=").or_else(|| text.strip_prefix("-b=")) {
            return Some(dir.into());
        }
    }
    Some(".".into())
}

/// Adds to a configuration what shows our functions that it names. Returns false if it names none.
fn give(node: &NodeDir, view: Option<&Path>, config: &mut Value) -> Result<bool, String> {
    let (by_file, files) = by_files(config, |name| match view {
        Some(class) => launcher::place_in(class, name),
        None => launcher::place(name),
    });
    let addresses = pci_addresses(config);
    if by_file.is_empty() && addresses.is_empty() {
        return Ok(false);
    }
    // Functions of a card have such addresses too, and then there need not be a node.
    let Ok((devices, command, provider)) = container::found(node) else { return Ok(false) };
    let dir = node::dir::claim(&node.path()).map_err(|e| e.to_string())?;
    let given = |device: &&DeviceInfo| {
        let place = Place::Node { dir: dir.clone(), fid: device.fid };
        by_file.contains(&place) || addresses.contains(&device.bdf)
    };
    let shown: Vec<&DeviceInfo> = devices.iter().filter(given).collect();
    if shown.is_empty() {
        return Ok(false);
    }
    if let Some(Value::Array(list)) = config.pointer_mut("/linux/devices") {
        // The hook makes files of its own.
        list.retain(|device| device["path"].as_str().is_none_or(|path| !files.contains(path)));
    }
    let mount = |(path, options): (&Path, _)| json!({ "source": path, "destination": path, "type": "bind", "options": options });
    list(config, &["process", "env"])?.extend(container::variables(&dir).map(Value::from));
    list(config, &["mounts"])?.extend(container::mounts(&dir, &provider).map(mount));
    list(config, &["hooks", "createContainer"])?.push(container::hook_of(&dir, &shown, &command));
    Ok(true)
}

/// The list at `path` of a configuration, made where there is none.
fn list<'a>(config: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>, String> {
    let wrong = |expected: &str, found: &Value| {
        format!("expected {expected} at /{} of the container's configuration, found {found}", path.join("/"))
    };
    let mut at = config;
    for name in path {
        if at.is_null() {
            *at = json!({});
        }
        at = match at {
            Value::Object(members) => members.entry(*name).or_insert(Value::Null),
            other => return Err(wrong("objects", other)),
        };
    }
    if at.is_null() {
        *at = json!([]);
    }
    match at {
        Value::Array(list) => Ok(list),
        other => Err(wrong("a list", other)),
    }
}

/// Which devices of ours a container was given by their files, and the paths of all files that stand for such.
fn by_files(config: &Value, place: impl Fn(&Path) -> Option<Place>) -> (Vec<Place>, BTreeSet<String>) {
    let (mut places, mut paths) = (Vec::new(), BTreeSet::new());
    let devices = config.pointer("/linux/devices").and_then(Value::as_array);
    for device in devices.into_iter().flatten() {
        let Some(path) = device["path"].as_str() else { continue };
        let name = Path::new(path).strip_prefix(FILES).ok();
        let is_null = (device["major"].as_u64(), device["minor"].as_u64()) == (Some(NULL.0), Some(NULL.1));
        if let (Some(name), true) = (name, is_null) {
            paths.insert(path.into());
            places.extend(place(name));
        }
    }
    (places, paths)
}

/// The PCI addresses in variables that device plugins set.
fn pci_addresses(config: &Value) -> BTreeSet<String> {
    let variables = config.pointer("/process/env").and_then(Value::as_array);
    let values =
        variables.into_iter().flatten().filter_map(Value::as_str).filter_map(|text| text.split_once('='));
    let given = values.filter(|(name, _)| name.starts_with(PCI_DEVICES) && !name.ends_with("_INFO"));
    given.flat_map(|(_, list)| list.split(',').map(|address| address.trim().to_ascii_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_is_found_among_what_engines_say() {
        let of = |line: &str| bundle(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let containerd =
            "--root /run/create --log /l.json --log-format json create --bundle /b --pid-file /p name";
        assert_eq!(of(containerd), Some("/b".into()));
        assert_eq!(of("--systemd-cgroup --log=/l create --pid-file p --bundle=/c name"), Some("/c".into()));
        assert_eq!(of("run -b d name"), Some("d".into()));
        assert_eq!(of("create name"), Some(".".into()), "the working directory");
        for other in ["--root create start name", "delete --force run", "--version", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn functions_are_known_by_their_files_and_by_their_addresses() {
        let file = |path: &str, major: u64| json!({ "path": path, "type": "c", "major": major, "minor": 3 });
        let config = json!({
            "linux": { "devices": [file("/dev/infiniband/uverbs3", 1), file("/dev/infiniband/rdma_cm", 1),
                file("/dev/infiniband/uverbs0", 231), file("/dev/fuse", 1), { "type": "c" }] },
            "process": { "env": ["PCIDEVICE_A_B=0000:C1:00.1,0000:c1:00.2", "PCIDEVICE_A_B_INFO={}", "PATH=/bin", "X"] }
        });
        let third = Place::Node { dir: "/n".into(), fid: 3 };
        let (places, files) = by_files(&config, |name| (name == Path::new("uverbs3")).then(|| third.clone()));
        assert_eq!(places, [third]);
        assert_eq!(files.iter().collect::<Vec<_>>(), ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs3"]);
        assert_eq!(pci_addresses(&config).iter().collect::<Vec<_>>(), ["0000:c1:00.1", "0000:c1:00.2"]);
        let nothing = json!({ "linux": 7, "process": { "env": {} } });
        assert!(by_files(&nothing, |_| None).0.is_empty() && pci_addresses(&nothing).is_empty());
    }

    #[test]
    fn lists_are_made_where_there_are_none_and_other_things_are_said() {
        let mut config = json!({ "mounts": [1], "hooks": "none", "process": null });
        list(&mut config, &["mounts"]).unwrap().push(json!(2));
        list(&mut config, &["process", "env"]).unwrap().push(json!("A=b"));
        assert_eq!((&config["mounts"], &config["process"]), (&json!([1, 2]), &json!({ "env": ["A=b"] })));
        let error = list(&mut config, &["hooks", "createContainer"]).unwrap_err();
        assert!(error.contains("/hooks/createContainer") && error.contains("\"none\""), "{error}");
        assert!(list(&mut config, &["hooks"]).unwrap_err().contains("a list"));
    }
}
