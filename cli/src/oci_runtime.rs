//! `ironverbs cdi runtime`: device plugins of Kubernetes respond with device files and environment variables, not with device names of the
//! Container Device Interface. When a container with such functions is created, this adds the edits of `ironverbs cdi generate` to its
//! configuration before the actual runtime reads it. Containers that show devices of a node get a supervisor, which also covers programs
//! that are started in them later. Everything else passes through.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use launcher::container::{Limit, Supervision};
use node::devices::DeviceInfo;
use node::place::Place;
use serde_json::{Value, json};

use crate::container::{self, HOOK};
use crate::options::NodeDir;

/// Options before the command that take a value as the next argument, of runc and crun.
const WITH_VALUES: [&str; 6] = ["--log", "--log-format", "--log-level", "--root", "--criu", "--rootless"];
/// Prefix of the variables that list the PCI functions of a plugin's allocation.
const PCI_DEVICES: &str = "PCIDEVICE_";
/// The directory of verbs device files.
const FILES: &str = "/dev/infiniband";
/// Major and minor number of /dev/null, which the simulated device files are.
const NULL: (u64, u64) = (1, 3);

/// Execs `runtime` with `args`, after the container's configuration has the devices. Device files are identified in `view`, or in this
/// process's own view. Returns only on failure.
pub fn runtime(node: &NodeDir, runtime: &Path, view: Option<&Path>, args: &[OsString]) -> Result<(), String> {
    match split(args) {
        Some(("create" | "run", rest)) => made(node, view, rest)?,
        Some(("exec", rest)) => {
            let dir = node.path();
            for word in rest {
                // One of the options and of the program's arguments is the name of the container.
                if launcher::container::join(&dir, &word.to_string_lossy()).map_err(|e| e.to_string())? {
                    break;
                }
            }
        }
        _ => {}
    }
    Err(format!("cannot run {}: {}", runtime.display(), Command::new(runtime).args(args).exec()))
}

/// Adds devices to the container that is created with the arguments `rest`, and starts a supervisor if it shows any.
fn made(node: &NodeDir, view: Option<&Path>, rest: &[OsString]) -> Result<(), String> {
    let file = bundle(rest).join("config.json");
    // The runtime itself reports a bundle that it cannot read.
    let Ok(config) = File::open(&file) else { return Ok(()) };
    let mut config = container::read(config, &file.display().to_string())?;
    // A container with a hook got its devices by CDI, or was handled before.
    if hooks(&mut config).next().is_none() {
        give(node, view, &mut config)?;
    }
    if !mark_hook(&mut config) {
        return Ok(());
    }
    let name = rest.last().map(|name| name.to_string_lossy()).unwrap_or_default();
    let mut files = file_limit(&mut config);
    let limit = files
        .as_ref()
        .and_then(|limit| Some(Limit { soft: limit["soft"].as_u64()?, hard: limit["hard"].as_u64()? }));
    let supervision = Supervision::start(&node.path(), &name, limit).map_err(|e| e.to_string())?;
    if let (Some(files), Some(soft)) = (&mut files, supervision.soft_limit()) {
        files["soft"] = soft.into();
    }
    container::replace(&file, &config.to_string())
        .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    supervision.take_over().map_err(|e| e.to_string())
}

/// Finds the limit of descriptors in a configuration, if it sets one.
fn file_limit(config: &mut Value) -> Option<&mut Value> {
    let limits = config.pointer_mut("/process/rlimits")?.as_array_mut()?;
    limits.iter_mut().find(|limit| limit.get("type").is_some_and(|kind| kind == "RLIMIT_NOFILE"))
}

/// The command among `args`, after the runtime's own options, and the arguments after it.
fn split(args: &[OsString]) -> Option<(&str, &[OsString])> {
    let mut rest = args;
    loop {
        let (word, behind) = rest.split_first()?;
        rest = match word.to_str() {
            Some(option) if WITH_VALUES.contains(&option) => behind.get(1..)?,
            Some(option) if option.starts_with('-') => behind,
            word => return Some((word?, behind)),
        };
    }
}

/// The bundle directory of the container that is created with the arguments `rest`.
fn bundle(rest: &[OsString]) -> PathBuf {
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        if text == "--bundle" || text == "-b" {
            return rest.next().map(PathBuf::from).unwrap_or_default();
        }
        if let Some(dir) = text.strip_prefix("--bundle=").or_else(|| text.strip_prefix("-b=")) {
            return dir.into();
        }
    }
    ".".into()
}

/// The arguments of those hooks in a configuration that show devices of a node.
fn hooks(config: &mut Value) -> impl Iterator<Item = &mut Vec<Value>> {
    let hooks = config.pointer_mut("/hooks/createContainer").and_then(Value::as_array_mut);
    let arguments = hooks.into_iter().flatten().filter_map(|hook| hook.get_mut("args")?.as_array_mut());
    arguments.filter(|args| args.get(..HOOK.len()).is_some_and(|begin| begin == HOOK))
}

/// Makes the last such hook notify the supervisor. Returns false if there is none.
fn mark_hook(config: &mut Value) -> bool {
    const MARK: &str = "--supervised";
    hooks(config).for_each(|args| args.retain(|word| word != MARK));
    hooks(config).last().map(|args| args.push(MARK.into())).is_some()
}

/// Adds to a configuration the edits for those of the node's functions that it names.
fn give(node: &NodeDir, view: Option<&Path>, config: &mut Value) -> Result<(), String> {
    let (by_file, files) = by_files(config, |name| match view {
        Some(class) => launcher::place_in(class, name),
        None => launcher::place(name),
    });
    let addresses = pci_addresses(config);
    if by_file.is_empty() && addresses.is_empty() {
        return Ok(());
    }
    // A physical adapter's functions have such addresses too; then there may be no node.
    let Ok((devices, command, provider)) = container::found(node) else { return Ok(()) };
    let dir = node::dir::claim(&node.path()).map_err(|e| e.to_string())?;
    let given = |device: &&DeviceInfo| {
        let place = Place::Node { dir: dir.clone(), fid: device.fid };
        by_file.contains(&place) || addresses.contains(&device.bdf)
    };
    let shown: Vec<&DeviceInfo> = devices.iter().filter(given).collect();
    if shown.is_empty() {
        return Ok(());
    }
    if let Some(Value::Array(list)) = config.pointer_mut("/linux/devices") {
        // The hook creates its own files.
        list.retain(|device| device["path"].as_str().is_none_or(|path| !files.contains(path)));
    }
    let mount = |(path, options): (&Path, _)| json!({ "source": path, "destination": path, "type": "bind", "options": options });
    list(config, &["process", "env"])?.extend(container::variables(&dir).map(Value::from));
    list(config, &["mounts"])?.extend(container::mounts(&dir, &provider).map(mount));
    list(config, &["hooks", "createContainer"])?.push(container::hook_of(&dir, &shown, &command));
    Ok(())
}

/// The list at `path` of a configuration, created if missing.
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

/// The simulated devices that a container was given by their device files, and the paths of all files for these devices.
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
        let of = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            split(&words).map(|(command, rest)| (command.to_owned(), bundle(rest)))
        };
        let is = |command: &str, bundle: &str| Some((command.to_owned(), PathBuf::from(bundle)));
        let containerd =
            "--root /run/create --log /l.json --log-format json create --bundle /b --pid-file /p name";
        assert_eq!(of(containerd), is("create", "/b"));
        assert_eq!(of("--systemd-cgroup --log=/l create --pid-file p --bundle=/c name"), is("create", "/c"));
        assert_eq!(of("run -b d name"), is("run", "d"));
        assert_eq!(of("create name"), is("create", "."), "the working directory");
        assert_eq!(of("--root create start name").map(|(command, _)| command), Some("start".into()));
        for other in ["--version", "--root", "--root /r"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_last_hook_of_ours_tells_the_supervisor_and_those_of_others_stay_as_they_are() {
        let ours = |more: &[&str]| {
            let args = [&HOOK[..], &["--device", "iron1"], more].concat();
            json!({ "path": "/p", "args": args })
        };
        let others = json!({ "path": "/q", "args": ["ironverbs", "cdi"] });
        let config =
            |last| json!({ "hooks": { "createContainer": [others, ours(&[]), last, { "path": "/r" }] } });
        let mut marked = config(ours(&[]));
        for _ in 0..2 {
            assert!(mark_hook(&mut marked));
            assert_eq!(marked, config(ours(&["--supervised"])), "also of a bundle that is used again");
        }
        for mut none in
            [json!({}), json!({ "hooks": 7 }), json!({ "hooks": { "createContainer": [others] } })]
        {
            assert!(!mark_hook(&mut none));
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
