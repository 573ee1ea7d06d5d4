//! `ironverbs cdi`: a node's devices in containers. The Container Device Interface describes what an engine adds to a container for a
//! device: here the node's directory, the provider's files, and a hook that shows the device in the container's /sys.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use launcher::provider::{self, Provider};
use node::Observer;
use node::devices::{DeviceInfo, function};
use serde_json::{Value, json};

use crate::options::{Cdi, NodeDir};
use crate::say::{fail, say};

/// Version of the interface that podman in Debian 12 supports.
const VERSION: &str = "0.5.0";
/// The part of a device's full name before the class and the `=`.
const VENDOR: &str = "ironverbs";
/// The name for all devices of the node.
const ALL: &str = "all";
/// Time limit for a hook in seconds.
const PATIENCE: u32 = 30;
/// The beginning of the hook's command line.
pub const HOOK: [&str; 3] = ["ironverbs", "cdi", "hook"];
/// Maximum size in bytes of the runtime's input to a hook, and of a container's configuration.
const MOST: u64 = 16 << 20;

pub fn cdi(command: &Cdi) -> ExitCode {
    let done = match command {
        Cdi::Generate { node, output, class } => generate(node, output.as_deref(), class),
        Cdi::Hook { node, devices, supervised } => hook(node, devices, *supervised),
        Cdi::Runtime { node, runtime, view, args } => {
            crate::oci_runtime::runtime(node, runtime, view.as_deref(), args)
        }
    };
    done.map_or_else(|why| fail(1, why), |()| ExitCode::SUCCESS)
}

fn generate(node: &NodeDir, output: Option<&Path>, class: &str) -> Result<(), String> {
    let (devices, command, provider) = found(node)?;
    let dir = node::dir::claim(&node.path()).map_err(|e| e.to_string())?;
    let text = format!("{:#}\n", description(&dir, class, &devices, &command, &provider));
    match output {
        None => say!("{text}"),
        Some(file) => replace(file, &text).map_err(|e| format!("cannot write {}: {e}", file.display()))?,
    }
    Ok(())
}

/// Returns the devices of a node, this command's file, and the provider's files.
pub fn found(node: &NodeDir) -> Result<(Vec<DeviceInfo>, PathBuf, Provider), String> {
    let observer = Observer::open(&node.path()).map_err(|e| e.to_string())?;
    let devices = observer.devices().map_err(|e| e.to_string())?;
    let command = env::current_exe().map_err(|e| format!("cannot find this command's file: {e}"))?;
    let provider = provider::find(&command).map_err(|e| e.to_string())?;
    Ok((devices, command, provider))
}

/// Writes `file` atomically, so that engines do not read a partial file.
pub fn replace(file: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let aside = file.with_extension(format!("{}.new", std::process::id()));
    let made = fs::File::create(&aside).and_then(|mut new| new.write_all(text.as_bytes()));
    made.and_then(|()| fs::rename(&aside, file)).inspect_err(|_| {
        let _ = fs::remove_file(&aside);
    })
}

/// The CDI description of `devices` as a class, on the node in `node`.
fn description(
    node: &Path,
    class: &str,
    devices: &[DeviceInfo],
    command: &Path,
    provider: &Provider,
) -> Value {
    let mount = |(path, options)| json!({ "hostPath": path, "containerPath": path, "options": options });
    let device = |name: &str, shown: &[&DeviceInfo]| {
        let mut hook = hook_of(node, shown, command);
        hook["hookName"] = "createContainer".into();
        json!({ "name": name, "containerEdits": { "hooks": [hook] } })
    };
    let mut all: Vec<Value> = devices.iter().map(|one| device(&one.name, &[one])).collect();
    all.push(device(ALL, &devices.iter().collect::<Vec<_>>()));
    json!({
        "cdiVersion": VERSION,
        "kind": format!("{VENDOR}/{class}"),
        "containerEdits": {
            "env": variables(node),
            "mounts": mounts(node, provider).map(mount),
        },
        "devices": all,
    })
}

/// The environment variables for programs in a container.
pub fn variables(node: &Path) -> [String; 2] {
    [format!("IRONVERBS_NODE={}", node.display()), format!("RDMAV_DRIVERS={}", provider::STEM)]
}

/// Host paths that are mounted at the same paths in a container, with mount options.
pub fn mounts<'a>(node: &'a Path, provider: &'a Provider) -> [(&'a Path, [&'static str; 4]); 3] {
    let options = |how| ["bind", how, "nosuid", "nodev"];
    [
        (node, options("rw")),
        (provider.loader.as_path(), options("ro")),
        (provider.provider.as_path(), options("ro")),
    ]
}

/// The hook that shows devices in a container, in the format of OCI runtimes.
pub fn hook_of(node: &Path, shown: &[&DeviceInfo], command: &Path) -> Value {
    let mut args: Vec<Value> = HOOK.map(Value::from).into();
    args.extend(["--adapter".into(), json!(node)]);
    for device in shown {
        args.extend(["--device".into(), json!(device.name)]);
    }
    json!({ "path": command, "args": args, "timeout": PATIENCE })
}

/// Shows devices in the container with the state that the runtime passes on standard input.
fn hook(node: &NodeDir, wanted: &[String], supervised: bool) -> Result<(), String> {
    let root = root_of(&read(io::stdin().lock(), "the container's state")?)?;
    let dir = node.path();
    let (devices, _, provider) = found(node)?;
    let there = |fid: &u8| devices.iter().any(|one| one.fid == *fid);
    let number = |text: &String| {
        function(text, &devices).filter(there).ok_or_else(|| {
            let last = devices.last().map_or("none", |one| &one.name);
            format!("the adapter in {} has no {text}, its last is {last}", dir.display())
        })
    };
    let wanted = wanted.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    launcher::container::show(&root, &dir, &devices, &wanted, &provider).map_err(|e| e.to_string())?;
    if supervised {
        launcher::container::tell_supervisor();
    }
    Ok(())
}

/// The root directory of the container that `state`, as OCI runtimes pass it to hooks, describes.
fn root_of(state: &Value) -> Result<PathBuf, String> {
    let bundle = Path::new(text(state, "/bundle", "the container's state")?);
    let file = bundle.join("config.json");
    let failed = |e: io::Error| format!("cannot open {}: {e}", file.display());
    let config = read(fs::File::open(&file).map_err(failed)?, &file.display().to_string())?;
    Ok(bundle.join(text(&config, "/root/path", &file.display().to_string())?))
}

pub fn read(from: impl Read, what: &str) -> Result<Value, String> {
    serde_json::from_reader(from.take(MOST)).map_err(|e| format!("{what} is no JSON: {e}"))
}

fn text<'a>(of: &'a Value, at: &str, what: &str) -> Result<&'a str, String> {
    let found = of.pointer(at).and_then(Value::as_str);
    found.ok_or_else(|| {
        format!("expected a path at {at} in {what}, found {}", of.pointer(at).unwrap_or(&Value::Null))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmodel::Config;

    #[test]
    fn each_device_has_its_hook_and_one_name_stands_for_all() {
        let devices = node::devices::devices(Path::new("/n"), 2, &Config::default());
        let provider = Provider { loader: "/l/loader.so".into(), provider: "/l/provider.so".into() };
        let spec = description(Path::new("/n"), "blue", &devices, Path::new("/usr/bin/ironverbs"), &provider);
        let names: Vec<_> = spec["devices"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(spec["kind"], "ironverbs/blue");
        assert_eq!(names, ["iron0", "iron1", "iron2", "all"]);
        let args = |at: usize| spec["devices"][at]["containerEdits"]["hooks"][0]["args"].as_array().unwrap();
        assert_eq!(args(1)[5..], ["--device", "iron1"]);
        assert_eq!(args(3).len(), 5 + 2 * 3);
    }

    #[test]
    fn a_state_that_names_no_bundle_and_a_bundle_without_a_root_are_said() {
        let dir = &testkit::Scratch::made().0;
        let root = |config: &str| {
            fs::write(dir.join("config.json"), config).unwrap();
            root_of(&json!({ "bundle": dir }))
        };
        assert_eq!(root(r#"{"root": {"path": "rootfs"}}"#), Ok(dir.join("rootfs")));
        assert_eq!(root(r#"{"root": {"path": "/elsewhere"}}"#), Ok("/elsewhere".into()));
        for (config, said) in
            [("{}", "found null"), (r#"{"root": {"path": 7}}"#, "found 7"), ("{", "no JSON")]
        {
            let error = root(config).unwrap_err();
            assert!(error.contains(said) && error.contains("config.json"), "{error}");
        }
        assert!(root_of(&json!({ "id": "x" })).unwrap_err().contains("/bundle"));
        assert!(root_of(&json!({ "bundle": "/not/there" })).unwrap_err().contains("/not/there/config.json"));
    }
}
