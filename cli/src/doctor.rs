//! `ironverbs doctor`: the features that this host lacks, and how to get them.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use launcher::probe::{self, Answer};
use launcher::provider;
use node::Observer;
use node::dir;
use node::place::Place;
use serde_json::json;

use crate::say::say_line;

/// rdma-core releases with a known private provider interface; the provider detects it again when it is loaded.
const KNOWN_RDMA_CORE: std::ops::RangeInclusive<u32> = 39..=65;

/// Recommended free space in shared memory for a node and its programs' rings.
const ROOM: u64 = 256 << 20;

enum State {
    Ok,
    /// Works without it, but with restrictions.
    Limited,
    Missing,
}

struct Finding {
    what: &'static str,
    state: State,
    text: String,
}

fn found(what: &'static str, text: impl Into<String>) -> Finding {
    Finding { what, state: State::Ok, text: text.into() }
}

fn missing(what: &'static str, text: impl Into<String>) -> Finding {
    Finding { what, state: State::Missing, text: text.into() }
}

fn limited(what: &'static str, text: impl Into<String>) -> Finding {
    Finding { what, state: State::Limited, text: text.into() }
}

impl State {
    fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// Reports on this host and the adapter in `node`.
pub fn doctor(node: &Path, is_json: bool) -> ExitCode {
    let findings = [
        view(),
        library(),
        program("ibverbs-utils", "ibv_devinfo"),
        program("perftest", "ib_read_lat"),
        provider_object(),
        namespaces(),
        seccomp(),
        supervisor(),
        set_uid(),
        memory(node),
        process_vm(),
        lending(),
        optional("ucx-utils", "ucx_perftest", "make bench compares with it"),
        vfio(),
        qemu(),
    ];
    let bad = findings.iter().filter(|f| matches!(f.state, State::Missing)).count();
    if is_json {
        let finding =
            |f: &Finding| json!({ "what": f.what, "state": f.state.word(), "text": f.text.as_str() });
        let all: Vec<_> = findings.iter().map(finding).collect();
        say_line!("{:#}", json!({ "missing": bad, "findings": all }));
    } else {
        findings.iter().for_each(|f| say_line!("{:8} {:15} {}", f.state.word(), f.what, f.text));
    }
    if bad == 0 {
        ExitCode::SUCCESS
    } else {
        crate::say::fail(1, format!("{bad} of what is needed missing on this host"))
    }
}

/// Checks that programs started from here see an adapter, and all of its devices.
fn view() -> Finding {
    const WHAT: &str = "this shell";
    let Some(node) = env::var_os("IRONVERBS_NODE").map(PathBuf::from) else { return no_view() };
    // If the device directory cannot be listed, it counts as empty: this shell then sees no adapter.
    let seen = launcher::places().unwrap_or_default();
    if seen.is_empty() {
        return no_view();
    }
    let nodes: BTreeSet<&Path> = seen.iter().filter_map(Place::node).collect();
    for node in &nodes {
        let seen = seen.iter().filter(|place| place.node() == Some(node)).count();
        let there = Observer::open(node).map_or(seen, |node| node.addresses().len());
        if seen != there {
            return limited(
                WHAT,
                format!(
                    "its programs see {seen} of the {there} functions of the adapter in {}: the supervisor of this run has ended, or may not \
                     make device files; programs of another `ironverbs run` see all",
                    node.display()
                ),
            );
        }
    }
    // Functions elsewhere belong to no adapter; the directory is listed for them nevertheless.
    let nodes =
        if nodes.is_empty() { vec![node.display()] } else { nodes.iter().map(|dir| dir.display()).collect() };
    let paths: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    found(WHAT, format!("its programs see the adapter in {}", paths.join(" and that in ")))
}

fn no_view() -> Finding {
    found(
        "this shell",
        "its programs see no adapter: `ironverbs run -- ib_write_bw ...` sees one, `ib_write_bw ...` alone does not",
    )
}

fn library() -> Finding {
    const WHAT: &str = "libibverbs";
    let Some(file) = find_library() else {
        return missing(WHAT, "libibverbs.so.1 not found: apt-get install libibverbs1 ibverbs-providers");
    };
    let path = file.display();
    match rdma_core(&file) {
        Some(n) if KNOWN_RDMA_CORE.contains(&n) => {
            found(WHAT, format!("rdma-core {n}, layout known ({path})"))
        }
        Some(n) => limited(
            WHAT,
            format!(
                "rdma-core {n} is outside the known {} to {}: the provider refuses it where its layout differs",
                KNOWN_RDMA_CORE.start(),
                KNOWN_RDMA_CORE.end()
            ),
        ),
        None => limited(WHAT, format!("release not known from {path}: the provider finds out when loaded")),
    }
}

/// Finds libibverbs in the dynamic linker's directories of a Debian or similar system.
fn find_library() -> Option<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        env::var_os("LD_LIBRARY_PATH").map(|p| env::split_paths(&p).collect()).unwrap_or_default();
    for base in ["/usr/lib", "/lib"] {
        let triple = format!("{}-linux-gnu", env::consts::ARCH);
        dirs.push(Path::new(base).join(triple));
    }
    dirs.extend(["/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    dirs.iter().find_map(|d| fs::canonicalize(d.join("libibverbs.so.1")).ok())
}

/// The rdma-core release in `libibverbs.so.1.14.44.0`.
fn rdma_core(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.strip_prefix("libibverbs.so.")?.split('.').nth(2)?.parse().ok()
}

fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|d| d.join(name)).find(|f| f.is_file())
}

fn program(package: &'static str, name: &str) -> Finding {
    match on_path(name) {
        Some(file) => found(package, file.display().to_string()),
        None => missing(package, format!("{name} not on PATH: apt-get install {package}")),
    }
}

fn optional(package: &'static str, name: &str, use_of_it: &str) -> Finding {
    match on_path(name) {
        Some(file) => found(package, file.display().to_string()),
        None => limited(package, format!("{name} not on PATH ({use_of_it}): apt-get install {package}")),
    }
}

fn provider_object() -> Finding {
    const WHAT: &str = "provider";
    let found_at = env::current_exe()
        .map_err(|e| e.to_string())
        .and_then(|exe| provider::find(&exe).map_err(|e| e.to_string()));
    match found_at {
        Ok(files) => found(WHAT, files.provider.display().to_string()),
        Err(why) => missing(WHAT, why),
    }
}

fn refused(answer: Answer) -> Option<String> {
    match answer {
        Answer::Yes => None,
        Answer::No(errno) => Some(probe::errno(errno)),
        Answer::Unknown => Some("the trial did not end as it should".into()),
    }
}

fn namespaces() -> Finding {
    match refused(probe::namespaces()) {
        None => found("namespaces", "mount namespaces allowed"),
        Some(why) => missing("namespaces", format!("refused: {why}; {}", probe::namespaces_remedy())),
    }
}

fn seccomp() -> Finding {
    match refused(probe::seccomp()) {
        None => found("seccomp", "filters allowed: programs find RDMA netlink, `serve` is jailed"),
        Some(why) => missing("seccomp", format!("refused: {why}; the kernel needs CONFIG_SECCOMP_FILTER")),
    }
}

/// Checks whether RDMA netlink is answered and counters under `/sys` are updated.
fn supervisor() -> Finding {
    const WHAT: &str = "RDMA netlink";
    let without = "programs find the devices in /sys, `rdma` finds none, counters below /sys stay 0";
    match probe::supervisor() {
        probe::ANOTHER_LISTENS => limited(
            WHAT,
            format!("another supervisor listens here (a run inside a run on another adapter): {without}"),
        ),
        answer => match refused(answer) {
            None => found(WHAT, "a supervisor answers it"),
            Some(why) => limited(
                WHAT,
                format!(
                    "refused: {why}; {without}; Linux 5.14 or later has it, in a container if its seccomp profile lets seccomp and open_tree pass"
                ),
            ),
        },
    }
}

/// Checks whether `sudo` works in a run.
fn set_uid() -> Finding {
    const WHAT: &str = "set-uid";
    match probe::set_uid() {
        Answer::Yes => found(WHAT, "sudo and other set-uid programs work in a run"),
        _ => limited(
            WHAT,
            "sudo and other set-uid programs gain nothing in a run that is not root's: run `sudo ironverbs run` instead",
        ),
    }
}

fn memory(node: &Path) -> Finding {
    const WHAT: &str = "shared memory";
    let at = if node.is_dir() { node } else { node.parent().unwrap_or(Path::new("/")) };
    let free = dir::free_bytes(at).unwrap_or(0);
    let path = node.display();
    if node.is_dir() {
        if let Err(e) = dir::check(node) {
            return missing(WHAT, e.to_string());
        }
    }
    if !dir::in_memory(at) {
        missing(
            WHAT,
            format!(
                "{path} is not on a tmpfs: mount -t tmpfs tmpfs /dev/shm, or name another with --adapter"
            ),
        )
    } else if free < ROOM {
        limited(
            WHAT,
            format!(
                "{} MiB free at {path}, {} advised: mount -o remount,size=1G its tmpfs (docker: --shm-size 1g)",
                free >> 20,
                ROOM >> 20
            ),
        )
    } else {
        found(WHAT, format!("{} MiB free at {path}", free >> 20))
    }
}

fn process_vm() -> Finding {
    const WHAT: &str = "process_vm";
    match refused(probe::process_vm()) {
        None => found(WHAT, "direct copies between processes allowed"),
        Some(why) => limited(
            WHAT,
            format!(
                "direct copies refused: {why}; data goes through the owner's thread, slower; sysctl kernel.yama.ptrace_scope should be 0 or 1"
            ),
        ),
    }
}

fn lending() -> Finding {
    const WHAT: &str = "userfaultfd";
    match migration::check_write_protection() {
        Ok(()) => found(WHAT, "registered memory can be lent to the adapter"),
        Err(why) => limited(
            WHAT,
            format!(
                "refused: {why}; registered memory is lent to the adapter by programs of one thread alone, and small messages to that of others take a system call, about 1 us (docs/memory.md)"
            ),
        ),
    }
}

/// Checks for the kernel VFIO support that `run --vfio`, `bringup --vfio` and `vf` need.
fn vfio() -> Finding {
    const WHAT: &str = "kernel VFIO";
    let groups = fs::read_dir("/sys/kernel/iommu_groups").map_or(0, Iterator::count);
    if !Path::new("/dev/vfio/vfio").exists() {
        limited(
            WHAT,
            "no /dev/vfio/vfio (real cards need it, the simulated adapter does not): modprobe vfio-pci",
        )
    } else if groups == 0 {
        limited(WHAT, "no IOMMU group (real cards need one): intel_iommu=on or amd_iommu=on for the kernel")
    } else {
        found(WHAT, format!("{groups} IOMMU groups"))
    }
}

/// The oldest QEMU with a vfio-user client.
const QEMU: (u32, u32) = (10, 1);

/// Checks for a QEMU that supports guests on `ironverbs serve`.
fn qemu() -> Finding {
    const WHAT: &str = "QEMU";
    const NAME: &str = "qemu-system-x86_64";
    let needed = format!("guests on `ironverbs serve` need {}.{}", QEMU.0, QEMU.1);
    if on_path(NAME).is_none() {
        return limited(
            WHAT,
            format!("{NAME} not on PATH ({needed} or later): apt-get install qemu-system-x86"),
        );
    }
    let said = Command::new(NAME).arg("--version").stdin(Stdio::null()).output();
    let said = said.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    match qemu_version(&said) {
        Some(version) if version >= QEMU => found(WHAT, format!("{}.{}", version.0, version.1)),
        Some((major, minor)) => limited(WHAT, format!("{major}.{minor}; {needed} or later")),
        None => limited(WHAT, format!("{NAME} does not tell its version; {needed} or later")),
    }
}

/// The version in `QEMU emulator version 10.1.0 (Debian ...)`.
fn qemu_version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.split_once(" version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_qemu_are_compared_by_number() {
        let debian = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c) 2003-2025";
        assert_eq!(qemu_version(debian), Some((10, 0)));
        assert!(qemu_version("QEMU emulator version 11.1.0") >= Some(QEMU));
        assert_eq!(qemu_version("no such thing"), None);
    }

    #[test]
    fn the_release_is_the_third_number_of_the_library() {
        assert_eq!(rdma_core(Path::new("/usr/lib/libibverbs.so.1.14.44.0")), Some(44));
        assert_eq!(rdma_core(Path::new("/usr/lib/libibverbs.so.1.18.65.0")), Some(65));
        assert_eq!(rdma_core(Path::new("/usr/lib/libibverbs.so.1")), None);
    }
}
