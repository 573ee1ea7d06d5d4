//! `ironverbs run` from a user's point of view: what the program sees, what it returns, what is left behind.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A copy of the command next to a provider stub, in a place where an unprivileged user can execute it too, and the name of a node
/// directory in memory; both are removed at the end.
struct Bench {
    root: PathBuf,
    node: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Self {
        let name = format!("ironverbs-run-{name}-{}", std::process::id());
        let (root, node) = (std::env::temp_dir().join(&name), Path::new("/dev/shm").join(&name));
        let _ = fs::remove_dir_all(&root);
        let _ = fs::remove_dir_all(&node);
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        // Copied by another process: a child that another test forks here meanwhile would keep the file open for writing, and such a file
        // cannot be executed.
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_ironverbs")).arg(root.join("ironverbs")).status();
        assert!(copied.unwrap().success());
        for object in ["libironverbs_loader.so", "libironverbs_provider.so"] {
            fs::write(root.join(object), "").unwrap();
        }
        Self { root, node }
    }

    /// The command, with its own node.
    fn command(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new(self.root.join("ironverbs"));
        command.arg("run").arg("--adapter").arg(&self.node).args(options).arg("--").args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, options: &[&str], program: &[&str]) -> Output {
        self.command(options, program).output().unwrap()
    }

    /// Another command on the node.
    fn about(&self, words: &[&str]) -> Output {
        Command::new(self.root.join("ironverbs"))
            .args(words)
            .arg("--adapter")
            .arg(&self.node)
            .output()
            .unwrap()
    }

    /// The output of `sh -c script` on the node; it must succeed.
    fn sh(&self, script: &str) -> String {
        text(&self.run(&["--vfs", "3"], &["sh", "-c", script]))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
        let _ = fs::remove_dir_all(&self.node);
    }
}

fn text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "expected one line, found {said:?}");
    said
}

fn root() -> bool {
    text(&Command::new("id").arg("-u").output().unwrap()).trim() == "0"
}

#[test]
fn the_program_sees_the_devices_in_every_place_tools_look() {
    let bench = Bench::new("sees");
    let listed = bench.sh("ls /sys/class/infiniband; ls /sys/class/infiniband_verbs; ls /dev/infiniband");
    for i in 0..4 {
        assert!(
            listed.contains(&format!("iron{i}\n")) && listed.contains(&format!("uverbs{i}\n")),
            "{listed}"
        );
    }
    assert!(!listed.contains("iron4"), "{listed}");
    let numbers =
        bench.sh("stat -c '%t:%T' /dev/infiniband/uverbs2; cat /sys/class/infiniband_verbs/uverbs2/dev");
    assert_eq!(numbers, "1:3\n1:3\n");
    let path = bench.sh("realpath /sys/class/infiniband/iron2/device /sys/bus/pci/devices/0000:c1:00.2");
    let (device, function) = path.trim().split_once('\n').expect("two paths");
    // As hwloc determines the PCI device of a verbs device.
    assert!(device == function && device.ends_with("/pci0000:00/0000:c1:00.2"), "{path}");
    let link = bench.sh("readlink /sys/class/infiniband/iron2");
    assert!(link.contains("/devices/") && link.contains("/pci0000:00/0000:c1:00.2/infiniband/"), "{link}");
    let drivers = bench.sh("echo $RDMAV_DRIVERS; cat /etc/libibverbs.d/ironverbs.driver 2>/dev/null || true");
    let stem = launcher::provider::STEM;
    assert!(drivers.lines().all(|l| l.ends_with(&stem)), "{drivers}");
}

#[test]
fn devices_are_called_and_placed_as_the_node_was_made() {
    let bench = Bench::new("called");
    let made: Vec<_> =
        "adapter create --vfs 3 --name mlx5_90 --pci 0000:3b:00.0 --numa 1".split_whitespace().collect();
    let made = text(&bench.about(&made));
    assert!(made.contains("mlx5_90 and 3 VFs"), "{made}");
    let listed = bench.sh("ls /sys/class/infiniband /sys/bus/pci/devices");
    assert!(
        ["mlx5_90\n", "mlx5_93\n", "0000:3b:00.3\n"].iter().all(|name| listed.contains(name)),
        "{listed}"
    );
    assert!(!listed.contains("iron") && !listed.contains("0000:c1:"), "{listed}");
    assert_eq!(bench.sh("cat /sys/class/infiniband/mlx5_91/device/numa_node"), "1\n");
    // A device can be specified by its name and by its number.
    for device in ["mlx5_92", "iron2", "2"] {
        let said = text(&bench.about(&["adapter", "address", device, "10.9.0.2/24"]));
        assert_eq!(said, "mlx5_92: 10.9.0.2\n");
    }
    assert!(text(&bench.about(&["adapter", "status"])).contains("mlx5_92: down; address 10.9.0.2/24"));
    let said = complaint(&bench.about(&["adapter", "address", "mlx5_0"]));
    assert!(said.ends_with("no device 'mlx5_0': expected mlx5_90 to mlx5_93\n"), "{said}");
    let said = complaint(&bench.run(&["--name", "mlx5_0"], &["true"]));
    assert!(said.contains("name mlx5_90, asked for mlx5_0"), "{said}");
}

#[test]
fn what_the_host_has_is_still_there() {
    let bench = Bench::new("keeps");
    for place in ["/sys/devices", "/sys/class", "/sys/class/net", "/sys/bus/pci/devices", "/dev", "/dev/shm"]
    {
        let Ok(entries) = fs::read_dir(place) else { continue };
        let inside = bench.sh(&format!("ls -a {place}"));
        for name in entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()) {
            // Other tests create and remove theirs meanwhile.
            if !name.starts_with("ironverbs-") {
                assert!(inside.lines().any(|l| l == name), "{place}/{name} is missing");
            }
        }
    }
    assert_eq!(bench.sh("echo x >/dev/null; head -c 4 /dev/zero | wc -c").trim(), "4");
}

#[test]
fn exit_status_and_signals_are_the_programs_own() {
    let bench = Bench::new("status");
    assert_eq!(bench.run(&[], &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(bench.run(&[], &["sh", "-c", "kill -KILL $$"]).status.signal(), Some(9));
}

#[test]
fn nothing_is_left_outside_the_node_directory() {
    let seen = || {
        let ours = fs::read_to_string("/proc/self/mountinfo").unwrap().matches("- tmpfs ironverbs").count();
        (
            ours,
            Path::new("/sys/class/infiniband/iron0").exists(),
            Path::new("/dev/infiniband/uverbs0").exists(),
        )
    };
    let before = seen();
    let bench = Bench::new("leaves");
    bench.sh("true");
    assert_eq!(seen(), before);
}

#[test]
fn a_run_inside_a_run_stays_in_the_same_namespaces() {
    let bench = Bench::new("nested");
    let command = bench.root.join("ironverbs");
    let said = bench
        .sh(&format!("readlink /proc/self/ns/mnt; {} run -- readlink /proc/self/ns/mnt", command.display()));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], lines[1]);
}

#[test]
fn bad_input_gets_one_line_and_leaves_nothing() {
    let bench = Bench::new("bad");
    let missing = bench.run(&[], &["no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(complaint(&missing).contains("no-such-program"));
    let option = bench.run(&["--vfs", "128"], &["true"]);
    assert_eq!(option.status.code(), Some(2));
    assert!(complaint(&option).contains("128"));
    assert!(!bench.node.exists());

    fs::create_dir(&bench.node).unwrap();
    fs::set_permissions(&bench.node, fs::Permissions::from_mode(0o777)).unwrap();
    let open = bench.run(&[], &["true"]);
    assert_eq!(open.status.code(), Some(125));
    assert!(complaint(&open).contains("0777"));
    if root() {
        fs::set_permissions(&bench.node, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&bench.node, Some(65534), None).unwrap();
        assert!(complaint(&bench.run(&[], &["true"])).contains("owned by uid 65534"));
    }
    assert_eq!(fs::read_dir(&bench.node).unwrap().count(), 0);
}

#[test]
fn fewer_vfs_than_a_node_has_are_refused() {
    let bench = Bench::new("fewer");
    text(&bench.run(&["--vfs", "3"], &["true"]));
    let fewer = bench.run(&["--vfs", "2"], &["true"]);
    assert_eq!(fewer.status.code(), Some(125));
    assert!(complaint(&fewer).contains("3 virtual functions, asked for 2"));
    let more = bench.run(&["--vfs", "5"], &["ls", "/sys/class/infiniband"]);
    assert!(text(&more).contains("iron5"));
}

#[test]
fn a_node_on_a_disk_is_refused_and_not_begun() {
    let bench = Bench::new("disk");
    let there = bench.root.join("node");
    let refused = Command::new(bench.root.join("ironverbs"))
        .args(["run", "--adapter"])
        .arg(&there)
        .args(["--", "true"])
        .output()
        .unwrap();
    // Where /tmp is a memory file system, the directory is accepted.
    if refused.status.code() == Some(125) {
        assert!(complaint(&refused).contains("on a disk"));
        assert!(!there.exists());
    }
}

#[test]
fn set_uid_programs_work_in_a_run_of_root() {
    let bench = Bench::new("setuid");
    if !root() {
        return;
    }
    assert!(bench.sh("grep NoNewPrivs /proc/self/status").ends_with("\t0\n"));
    let id = bench.root.join("id");
    fs::copy("/usr/bin/id", &id).unwrap();
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let ask = [&user[..], &[id.to_str().unwrap(), "-u"]].concat();
    // A file system may forbid set-uid files altogether: then the result is the same as outside.
    let outside = text(&Command::new(ask[0]).args(&ask[1..]).output().unwrap());
    assert_eq!(text(&bench.run(&[], &ask)), outside);
}

#[test]
fn a_card_that_is_not_there_is_hinted_at_and_the_program_runs() {
    let bench = Bench::new("hint");
    let out = bench.run(&["--vfs", "3"], &["echo", "-d", "mlx5_99"]);
    assert_eq!(text(&out), "-d mlx5_99\n");
    assert!(complaint(&out).contains("no device mlx5_99 here; the program sees iron0 to iron3"));
    assert_eq!(bench.run(&[], &["echo", "-d", "iron1"]).stderr, b"");
}

/// Runs `command` as user 65534 if this process is root, else as the current user.
fn unprivileged(command: &Command) -> Command {
    let mut outer = if root() {
        let mut outer = Command::new("setpriv");
        outer
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
            .arg(command.get_program());
        outer
    } else {
        Command::new(command.get_program())
    };
    outer.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    outer
}

#[test]
fn unprivileged_programs_of_a_node_share_a_user_namespace() {
    let bench = Bench::new("users");
    if root() {
        fs::create_dir(&bench.node).unwrap();
        fs::set_permissions(&bench.node, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&bench.node, Some(65534), Some(65534)).unwrap();
    }
    let ready = bench.node.join("ready");
    let script = format!("touch {}; exec sleep 30", ready.display());
    let mut first: Child =
        unprivileged(&bench.command(&["--vfs", "1"], &["sh", "-c", &script])).spawn().unwrap();
    let started = Instant::now();
    while !ready.exists() {
        if first.try_wait().unwrap().is_some() {
            let said = complaint(&first.wait_with_output().unwrap());
            // The kernel refuses user namespaces to unprivileged processes in a chroot, and hosts may refuse them to all.
            assert!(said.contains("forbids the namespaces"), "{said}");
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    let space = fs::read_link(format!("/proc/{}/ns/user", first.id())).unwrap();
    let ask = ["sh", "-c", "readlink /proc/self/ns/user; id -u; ls /sys/class/infiniband"];
    let second = text(&unprivileged(&bench.command(&["--vfs", "1"], &ask)).output().unwrap());
    first.kill().unwrap();
    first.wait().unwrap();
    let lines: Vec<&str> = second.lines().collect();
    assert_eq!(lines[0], space.to_str().unwrap());
    assert_ne!(lines[0], fs::read_link("/proc/self/ns/user").unwrap().to_str().unwrap());
    assert_eq!(lines[2..], ["iron0", "iron1"]);

    // The namespace ended with its last process; a new one takes its place.
    let third = text(&unprivileged(&bench.command(&["--vfs", "1"], &ask)).output().unwrap());
    assert!(third.starts_with("user:"));
}

#[test]
fn a_node_is_watched_as_often_as_is_asked_for() {
    let bench = Bench::new("watched");
    bench.sh("true");
    let said = text(&bench.about(&["adapter", "status", "--watch", "0.05", "--times", "3"]));
    let heads = said.lines().filter(|line| line.starts_with("adapter in ")).count();
    assert!(heads == 3 && said.matches("tx Gb/s").count() == 3, "{said}");
    let lines = text(&bench.about(&["adapter", "status", "-o", "json", "--watch", "0.05", "--times", "2"]));
    assert_eq!(lines.lines().count(), 2, "{lines}");
    for line in lines.lines() {
        let status: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(status["vfs"], 3, "{line}");
    }
    assert!(complaint(&bench.about(&["adapter", "status", "--times", "2"])).contains("--watch"));
}

#[test]
fn a_demo_on_a_node_of_one_vf_says_that_it_takes_two() {
    let bench = Bench::new("demo");
    text(&bench.about(&["adapter", "create", "--vfs", "1"]));
    let output = bench.about(&["demo"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let node = bench.node.display();
    assert!(
        said.contains(&format!("demo: expected an adapter of 2 VFs or more, found 1 in {node}")),
        "{said}"
    );
}
