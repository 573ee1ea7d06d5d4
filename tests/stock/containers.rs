//! Devices of a node in podman containers, described to podman by `ironverbs cdi generate`.
//!
//! Needs `ironverbs` and the provider built (`scripts/test.sh build`), root, podman and runc. Tests with requirements that are not met say
//! so, and are skipped.

use crate::trust::{GROUP, Treasure};
use ironverbs_tests::stock::{GoPrograms, LISTENING, Node, Pair, Running, locks};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
    process::Command,
    time::Duration,
};
use testkit::until;

/// A node with two VFs registered with podman, and two network namespaces joined by a cable for the programs' exchange over TCP. Removed
/// when the test ends.
struct Place {
    node: Node,
    home: PathBuf,
    description: PathBuf,
    runtime: PathBuf,
    /// Soft and hard limit of descriptors of a container's programs.
    files: String,
}

impl Place {
    fn new(name: &str) -> Option<Self> {
        let is_there = |program: &&str| {
            let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
            found.is_ok_and(|found| found.status.success())
        };
        let missing = ["podman", "runc", "ip", "ss"].into_iter().find(|program| !is_there(program));
        if let Some(missing) = missing {
            println!("skipped: no {missing} here");
            return None;
        }
        let id = format!("{name}-{}", std::process::id());
        let home = std::env::temp_dir().join(format!("ironverbs-{id}"));
        let node = Node::new(name, 2);
        let description = format!("/var/run/cdi/ironverbs-{id}.json").into();
        let place = Self { node, home, description, runtime: "runc".into(), files: "1024:1024".into() };
        let file = place.description.display().to_string();
        place.node.ironverbs(&["node", "create"], &["--vfs", "2", "--group", GROUP]).finish();
        place.node.ironverbs(&["cdi", "generate"], &["--output", &file]).finish();
        for side in 0..2 {
            let root = place.root(side);
            for dir in ["usr", "proc", "sys", "dev", "etc/libibverbs.d", "tmp", "run"] {
                fs::create_dir_all(root.join(dir)).expect("a directory of the root");
            }
            for link in ["bin", "sbin", "lib", "lib64"] {
                symlink(format!("usr/{link}"), root.join(link)).expect("a link of the root");
            }
            place.ip(&format!("netns add {}", place.net(side)));
        }
        let [first, second] = [0, 1].map(|side| place.net(side));
        place.ip(&format!("link add c0 netns {first} type veth peer name c1 netns {second}"));
        let plain = place.container(0, &[], &[]).arg("true").output().expect("podman");
        if !plain.status.success() {
            println!("skipped: podman makes no container here: {}", String::from_utf8_lossy(&plain.stderr));
            return None;
        }
        for side in 0..2 {
            let net = place.net(side);
            place.ip(&format!("-n {net} addr add {}/24 dev c{side}", address(side)));
            place.ip(&format!("-n {net} link set lo up"));
            place.ip(&format!("-n {net} link set c{side} up"));
        }
        Some(place)
    }

    fn root(&self, side: usize) -> PathBuf {
        self.home.join(format!("root{side}"))
    }

    /// Returns the network namespace of a side.
    fn net(&self, side: usize) -> String {
        format!("iron{}-{side}", std::process::id())
    }

    fn ip(&self, words: &str) {
        let done = Command::new("ip").args(words.split(' ')).status().expect("ip");
        assert!(done.success(), "ip {words}");
    }

    fn podman(&self) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "80", "podman", "--cgroup-manager", "cgroupfs", "--runtime"])
            .arg(&self.runtime);
        command.args(["--storage-driver", "vfs", "--root"]).arg(self.home.join("storage"));
        command.arg("--runroot").arg(self.home.join("run"));
        command
    }

    /// Returns the command that makes a container with `devices`, a network and its own PID namespace, and `more` options; the program
    /// follows.
    fn container(&self, side: usize, devices: &[&str], more: &[&str]) -> Command {
        let mut command = self.podman();
        command.args(["run", "--rm", "-v", "/usr:/usr:ro"]);
        // If this process may not raise its limits, runc may not either.
        command.args(["--ulimit", &format!("nofile={}", self.files), "--ulimit", "nproc=1024:1024"]);
        command.args(["--network", &format!("ns:/run/netns/{}", self.net(side))]);
        for device in devices {
            command.args(["--device", &format!("ironverbs/function={device}")]);
        }
        command.args(more).arg("--rootfs").arg(self.root(side));
        command
    }

    /// Starts a program in a container.
    fn start(&self, side: usize, devices: &[&str], program: &[&str]) -> Running {
        Running::start(self.container(side, devices, &[]).args(program), &program.join(" "))
    }

    /// Waits until a perftest server listens in the first container, by rdma_cm or by TCP.
    fn until_heard(&self, tool: &str, by_cm: bool) {
        let sockets = || Command::new("ip").args(["netns", "exec", &self.net(0), "ss", "-Hltn"]).output();
        let listens = || match by_cm {
            true => locks(&self.node, LISTENING) != 0,
            false => String::from_utf8_lossy(&sockets().expect("ss").stdout).contains(":18515"),
        };
        until(format_args!("{tool} listens"), Duration::from_secs(30), listens);
    }

    /// Runs a server on iron1 and its client on iron2, in containers with `more` options. Returns the client's output.
    fn pair(&self, more: &[&str], tool: &str, options: &[&str]) -> String {
        let start = |side: usize, device: &str, words: &[&str]| {
            let program = [&[tool, "-d", device], options, words].concat();
            Running::start(self.container(side, &[device], more).args(&program), &program.join(" "))
        };
        let server = start(0, "iron1", &[]);
        self.until_heard(tool, options.contains(&"-R"));
        let client = start(1, "iron2", &[&address(0)]);
        let said = client.finish();
        server.finish();
        said
    }
}

fn address(side: usize) -> String {
    format!("10.79.0.{}", side + 1)
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.podman().args(["rm", "-f", "-t", "0", "-a"]).output();
        for side in 0..2 {
            let _ = Command::new("ip").args(["netns", "del", &self.net(side)]).output();
        }
        let _ = fs::remove_file(&self.description);
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// Selects our runtime for containers: an engine takes a program without arguments.
fn by_our_runtime(place: &mut Place) {
    let script = place.home.join("ironverbs-runc");
    let (command, node) = (place.node.binary(), place.node.dir());
    let text =
        format!("#!/bin/sh\nexec {} cdi runtime --node {} -- \"$@\"\n", command.display(), node.display());
    fs::write(&script, text).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    place.runtime = script;
}

/// Returns the names that a program in a container printed, one per line.
fn names(said: &str) -> Vec<&str> {
    said.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_container_has_the_devices_it_was_given_and_no_others() {
    let Some(place) = Place::new("containers-devices") else { return };
    let list = ["sh", "-c", "ls /sys/class/infiniband /dev/infiniband; ls -d /sys/class/net"];
    let cases = [
        (&["iron1"][..], vec!["iron1"]),
        (&["iron2", "iron0"], vec!["iron0", "iron2"]),
        (&["all"], vec!["iron0", "iron1", "iron2"]),
    ];
    for (devices, wanted) in cases {
        let said = place.start(0, devices, &list).finish();
        let found: Vec<_> = names(&said).into_iter().filter(|name| name.starts_with("iron")).collect();
        assert_eq!(found, wanted, "{devices:?}: {said}");
        let files = names(&said).into_iter().filter(|name| name.starts_with("uverbs")).count();
        assert_eq!(files, wanted.len(), "{said}");
        assert!(said.contains("rdma_cm") && said.contains("/sys/class/net"), "{said}");
        let info = place.start(0, devices, &["ibv_devinfo"]).finish();
        assert_eq!(info.matches("PORT_ACTIVE").count(), wanted.len(), "{info}");
    }
    let root = place.root(0);
    let left = fs::read_dir(root.join("sys")).expect("the root's own /sys").count();
    assert_eq!(left, 0, "what was mounted went with the container");
}

#[test]
fn what_a_container_puts_in_the_directory_does_nothing_to_the_host() {
    let Some(place) = Place::new("containers-trust") else { return };
    let treasure = Treasure::beside(&place.node);
    let inside = |script: &str| place.start(0, &["iron1"], &["sh", "-ec", script]).finish();
    inside(&treasure.code(&place.node));
    treasure.stays_whole(&place.node, "code");
    for name in ["parties", "clock", "containers"] {
        for script in treasure.in_place_of(&place.node, name) {
            inside(&script);
            treasure.stays_whole(&place.node, &script);
            let there = place.node.dir().join(name);
            let _ = fs::remove_file(&there).or_else(|_| fs::remove_dir_all(&there));
            place.node.ironverbs(&["node", "create"], &["--vfs", "2", "--group", GROUP]).finish();
        }
    }
}

#[test]
fn two_nodes_of_a_host_are_told_apart() {
    let Some(place) = Place::new("containers-nodes") else { return };
    let class = format!("blue{}", std::process::id());
    let other = place.node.beside(1);
    other.ironverbs(&["node", "create"], &["--vfs", "1", "--node-id", "1"]).finish();
    let file = place.description.with_extension("blue.json");
    other
        .ironverbs(&["cdi", "generate"], &["--class", &class, "--output", &file.display().to_string()])
        .finish();
    let of_other = format!("ironverbs/{class}=iron1");
    let shown = |devices: &[&str]| {
        let options: Vec<_> = devices.iter().flat_map(|device| ["--device", device]).collect();
        let mut container = place.container(0, &[], &options);
        let script =
            "ls /sys/class/infiniband; cat /sys/class/infiniband_verbs/*/ironverbs; echo $IRONVERBS_NODE";
        Running::start(container.args(["sh", "-c", script]), &devices.join(" ")).end()
    };
    let (first, second) = (shown(&["ironverbs/function=iron2"]), shown(&[&of_other]));
    let both = shown(&["ironverbs/function=iron2", &of_other]);
    fs::remove_file(&file).expect("the other description");
    assert!(first.contains("iron2") && first.contains(&place.node.dir().display().to_string()), "{first}");
    for (node, fid) in [(&place.node, 2), (&other, 1)] {
        let place = format!("node={}\nfid={fid}\n", node.dir().display());
        assert!(both.contains(&place) && both.contains(&format!("iron{fid}\n")), "{place}: {both}");
    }
    assert!(second.contains("iron1") && second.contains(&other.dir().display().to_string()), "{second}");
}

/// Returns the figure in `column` of the last row of perftest's table.
fn figure(said: &str, column: usize) -> f64 {
    let row = said.lines().rev().find(|line| line.trim().starts_with(|c: char| c.is_ascii_digit()));
    let figure = row.and_then(|row| row.split_whitespace().nth(column)).and_then(|word| word.parse().ok());
    figure.unwrap_or_else(|| panic!("expected perftest's row, found {said}"))
}

#[test]
fn programs_in_two_containers_reach_each_other() {
    let Some(place) = Place::new("containers-pair") else { return };
    let user = ["--user", "1000:1000", "--group-add", GROUP];
    for (more, tool, options, column) in [
        (&[][..], "ib_write_bw", &["-s", "65536", "-n", "10000"][..], 3),
        (&[], "ib_send_lat", &["-n", "10000"], 4),
        (&user, "ib_read_lat", &["-n", "10000"], 4),
        (&user, "ib_write_bw", &["-s", "65536", "-n", "10000"], 3),
    ] {
        let apart = figure(&place.pair(more, tool, &[&["-x", "1", "-F"], options].concat()), column);
        let host = figure(&Pair::perftest(&place.node, tool, "iron1", "iron2", options).client, column);
        println!("{tool} {more:?}: {apart} in containers, {host} on the host, {:.2} of it", apart / host);
    }
    let status = place.node.ironverbs(&["adapter", "status"], &["-o", "json"]).finish();
    assert!(status.contains("\"programs\": []"), "nobody is left on the node: {status}");
}

#[test]
fn programs_in_two_containers_connect_by_address() {
    let Some(place) = Place::new("containers-cm") else { return };
    for side in 0..2 {
        let (device, address) = (format!("iron{}", side + 1), format!("{}/24", address(side)));
        place.node.ironverbs(&["node", "address"], &[&device, &address]).finish();
    }
    let user = ["--user", "1000:1000", "--group-add", GROUP];
    for (more, tool, options, column) in [
        (&[][..], "ib_write_lat", &["-n", "10000"][..], 4),
        (&user, "ib_send_bw", &["-s", "65536", "-n", "10000"], 3),
    ] {
        let options = [&["-R", "-F"], options].concat();
        let apart = figure(&place.pair(more, tool, &options), column);
        let words = |device| [&[tool, "-d", device], &options[..]].concat();
        let host =
            Pair::managed(&place.node, &words("iron1"), &[&words("iron2")[..], &[&address(0)]].concat());
        let host = figure(&host.client, column);
        println!("{tool} -R {more:?}: {apart} in containers, {host} on the host, {:.2} of it", apart / host);
    }
}

/// Containers are made as a kubelet requests them for functions allocated by a device plugin: by PCI address.
#[test]
fn containers_that_a_device_plugin_gave_functions_have_them() {
    let Some(mut place) = Place::new("containers-plugin") else { return };
    by_our_runtime(&mut place);
    let given = |functions: &str| ["-e".to_string(), format!("PCIDEVICE_EXAMPLE_COM_RDMA={functions}")];
    let list = ["ls", "/sys/class/infiniband"];
    for (functions, wanted) in [
        ("0000:c1:00.1", vec!["iron1"]),
        ("0000:c1:00.2,0000:c1:00.0", vec!["iron0", "iron2"]),
        ("0000:99:00.1", vec![]),
    ] {
        let more = given(functions);
        let mut container = place.container(0, &[], &more.each_ref().map(String::as_str));
        let said = Running::start(container.args(list), "ls").end();
        let found: Vec<_> = names(&said).into_iter().filter(|name| name.starts_with("iron")).collect();
        assert_eq!(found, wanted, "{functions}: {said}");
    }
    let side = |side: usize, more: &[&str]| {
        let program = [&["ib_read_lat", "-x", "1", "-F", "-n", "1000", "-d"], more].concat();
        let given = given(&format!("0000:c1:00.{}", side + 1));
        let mut container = place.container(side, &[], &given.each_ref().map(String::as_str));
        Running::start(container.args(&program), &program.join(" "))
    };
    let server = side(0, &["iron1"]);
    place.until_heard("ib_read_lat", false);
    let said = side(1, &["iron2", &address(0)]).finish();
    server.finish();
    assert!(figure(&said, 4) > 0.0, "{said}");
}

/// With our runtime a container has a supervisor: RDMA netlink shows only the container's devices, counters count, an address that is set
/// becomes visible, and programs started there later are under it as well. It ends with the container.
#[test]
fn a_container_of_our_runtime_has_counters_and_rdma_netlink() {
    let Some(mut place) = Place::new("containers-super") else { return };
    by_our_runtime(&mut place);
    let port = "/sys/class/infiniband/iron1/ports/1";
    let script = |reads: u32| {
        format!(
            r#"echo links $(rdma link | cut -d ' ' -f 2)
        ib_read_lat -x 1 -F -n 500 -d iron1 >/dev/null & sleep 1; ib_read_lat -x 1 -F -n 500 -d iron2 127.0.0.1 >/dev/null; wait
        for i in $(seq 100); do [ $(cat {port}/hw_counters/rx_read_requests) = {reads} ] && break; sleep 0.05; done
        echo reads $(cat {port}/hw_counters/rx_read_requests) $(rdma statistic show link iron1/1 | grep -o 'rx_read_requests [0-9]*')
        touch /tmp/ready
        for i in $(seq 200); do grep -q 0a4f:0063 {port}/gids/1 && break; sleep 0.05; done
        echo gid $(cat {port}/gids/1)
        for i in $(seq 200); do [ -e /tmp/execed ] && break; sleep 0.05; done"#
        )
    };
    let plugin = ["-e", "PCIDEVICE_EXAMPLE_COM_RDMA=0000:c1:00.1,0000:c1:00.2"];
    for (devices, more, reads) in [(&["iron1", "iron2"][..], &[][..], 500), (&[], &plugin[..], 1000)] {
        let name = format!("super{}", std::process::id());
        let more = [more, &["--name", &name]].concat();
        let mut container = place.container(0, devices, &more);
        let running = Running::start(container.args(["sh", "-c", &script(reads)]), "the container's shell");
        let exec =
            |program: &[&str]| place.podman().args(["exec", &name]).args(program).output().expect("podman");
        until("the container is ready", Duration::from_secs(60), || {
            exec(&["test", "-e", "/tmp/ready"]).status.success()
        });
        place.node.ironverbs(&["node", "address"], &["iron1", "10.79.0.99/24"]).finish();
        let links = String::from_utf8(exec(&["rdma", "link"]).stdout).expect("text");
        exec(&["touch", "/tmp/execed"]);
        let said = running.finish();
        for wanted in [
            "links iron1/1 iron2/1",
            &format!("reads {reads} rx_read_requests {reads}"),
            "gid 0000:0000:0000:0000:0000:ffff:0a4f:0063",
        ] {
            assert!(said.lines().any(|line| line == wanted), "expected {wanted}: {said}");
        }
        let seen: Vec<_> = links.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(seen, ["iron1/1", "iron2/1"], "of a program that was started later: {links}");
        place.node.ironverbs(&["node", "address"], &["iron1"]).finish();
        for file in ["ready", "execed"] {
            fs::remove_file(place.root(0).join("tmp").join(file)).expect("what the container left");
        }
        let of_node = fs::metadata(place.node.dir()).expect("the node's directory");
        let of_node = format!("{:x}-{:x}-", of_node.dev(), of_node.ino());
        let doors = || fs::read_dir("/run/ironverbs").expect("root's own directory").flatten();
        until("the supervisor goes with its container", Duration::from_secs(10), || {
            !doors().any(|door| door.file_name().to_string_lossy().starts_with(&of_node))
        });
    }
}

/// An engine that runs in a view, and its containers, use that run's supervisor, because the kernel accepts only one. It reports to each
/// container the devices that the container was given, with their numbers there.
#[test]
fn rdma_netlink_in_containers_of_an_engine_in_a_view_knows_the_containers_devices() {
    let Some(mut place) = Place::new("containers-view") else { return };
    // As in a kubelet's containers, the hard limit is the engine's: the run's sockets have numbers above the soft limit.
    let hard = Command::new("sh").args(["-c", "ulimit -Hn"]).output().expect("sh").stdout;
    place.files = format!("1024:{}", String::from_utf8_lossy(&hard).trim());
    let list = "rdma dev; rdma link; rdma resource; rdma statistic; rdma resource show mr; ibv_devinfo -l";
    for by_ours in [false, true] {
        if by_ours {
            by_our_runtime(&mut place);
        }
        let mut container = place.container(0, &["iron2"], &[]);
        container.args(["sh", "-c", list]);
        let words: Vec<_> = [container.get_program()].into_iter().chain(container.get_args()).collect();
        let words: Vec<_> = words.iter().map(|word| word.to_str().expect("text")).collect();
        let said = place.node.run(&words);
        for wanted in [
            ": iron2: node_type ca",
            "link iron2/1 state ACTIVE",
            ": iron2: pd 0 cq 0 qp 0",
            "link iron2/1 rx_write_requests",
        ] {
            assert!(said.contains(wanted), "expected {wanted}: {said}");
        }
        assert!(!said.contains("iron0") && !said.contains("iron1"), "by our runtime: {by_ours}: {said}");
    }
    // The engine itself sees them all.
    assert_eq!(place.node.run(&["rdma", "dev"]).matches(": node_type ca").count(), 3);
}

/// The plugin that gives all pods the same functions, many times, in a view of the node: everything that it looks for is there.
#[test]
fn the_shared_device_plugin_offers_the_nodes_functions() {
    let Some(programs) = GoPrograms::with(&["cni"], &["k8s-rdma-shared-dp", "plugin-client"]) else { return };
    let [plugin, client] =
        ["k8s-rdma-shared-dp", "plugin-client"].map(|name| programs.find(name).expect("there"));
    let node = Node::new("shared-plugin", 2);
    // The kubelet's folders are not those of this host.
    let script = format!(
        r#"mount -t tmpfs none /var/lib && registry=/var/lib/kubelet/plugins_registry
        mkdir -p $registry /var/lib/kubelet/device-plugins
        echo '{{"periodicUpdateInterval":0,"configList":[{{"resourceName":"hca","rdmaHcaMax":500,
            "selectors":{{"vendors":["15b3"],"deviceIDs":["1018"],"drivers":["mlx5_core"]}}}}]}}' >/var/lib/shared
        timeout 60 '{}' -config-file /var/lib/shared >/var/lib/log 2>&1 & plugin=$!
        timeout 40 '{}' $registry/hca.sock || {{ cat /var/lib/log; exit 1; }}
        kill $plugin; wait $plugin || true"#,
        plugin.display(),
        client.display()
    );
    let said = node.run(&["unshare", "--mount", "sh", "-euc", &script]);
    assert_eq!(said.lines().filter(|line| line.starts_with("device ")).count(), 500, "{said}");
    for file in ["uverbs1", "uverbs2", "umad1", "umad2", "rdma_cm"] {
        assert!(said.contains(&format!("/dev/infiniband/{file}")), "{file}: {said}");
    }
    assert!(!said.contains("uverbs0"), "the PF has another id: {said}");
}

#[test]
fn a_device_that_the_node_has_not_fails_the_container_with_a_line_that_says_so() {
    let Some(place) = Place::new("containers-missing") else { return };
    let text = fs::read_to_string(&place.description).expect("the description");
    fs::write(&place.description, text.replace("\"iron2\"", "\"iron7\"")).expect("another description");
    let done = place.container(0, &["iron7"], &[]).arg("true").output().expect("podman");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("has no iron7"), "{said}");
}
