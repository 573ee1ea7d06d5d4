//! A cluster that a test has to itself.

use ironverbs_tests::stock::GoPrograms;
use std::{
    env, fs,
    io::Write,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// A cluster in its own folder. Dropping it ends and removes the cluster.
pub struct Cluster {
    folder: PathBuf,
    programs: GoPrograms,
    /// Variables of the script that describe the cluster.
    form: &'static [(&'static str, &'static str)],
}

/// Runs a command that limits its own time. Returns its output and status.
fn run(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a command");
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("all of it taken");
    child.wait_with_output().expect("its end")
}

impl Cluster {
    /// Starts a cluster with these variables of `scripts/kubernetes.sh`. Returns `None`, and prints the reason, if something is missing
    /// that the script or the test `needs`.
    pub fn new(form: &'static [(&'static str, &'static str)], needs: &[&str]) -> Option<Self> {
        let needs = [&["kubelet", "multus", "sriovdp"], needs].concat();
        let programs = GoPrograms::with(&["kubernetes", "cni", "charts"], &needs)?;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = PathBuf::from(format!("/dev/shm/ironverbs-kubernetes-{process}-{number}"));
        let this = Self { folder, programs, form };
        let began = Instant::now();
        let up = run(this.script(600, &["up"]), "");
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        println!("{form:?}: ready after {} s", began.elapsed().as_secs());
        Some(this)
    }

    fn script(&self, limit: u64, words: &[&str]) -> Command {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/kubernetes.sh");
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &limit.to_string(), script]).args(words);
        command.env("CLUSTER", &self.folder).envs(self.form.iter().copied());
        command
    }

    /// Runs a command of `scripts/kubernetes.sh`, which must succeed. Returns its output.
    fn script_said(&self, words: &[&str]) -> String {
        let done = run(self.script(180, words), "");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&done.stderr));
        said
    }

    /// Runs a program on a node. Returns true if it succeeded, and the output of both its streams.
    pub fn tried_on(&self, node: u8, words: &[&str]) -> (bool, String) {
        let done = run(self.script(180, &[&["on", &node.to_string()], words].concat()), "");
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Runs kubectl with `input`. Returns its output, or its error output if it failed.
    pub fn kubectl(&self, words: &[&str], input: &str) -> Result<String, String> {
        let done = run(self.script(180, &[&["kubectl"], words].concat()), input);
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(said(&done.stdout)) } else { Err(said(&done.stderr)) }
    }

    /// Queries a JSON path of an object with `kubectl get`. Returns an empty string if it does not exist.
    pub fn get(&self, what: &[&str], path: &str) -> String {
        let path = format!("jsonpath={path}");
        let words = [&["get"], what, &["-o", &path]].concat();
        self.kubectl(&words, "").unwrap_or_default()
    }

    /// Applies manifests. Retries, because their kinds may not be known yet.
    pub fn apply(&self, manifests: &str) {
        self.until("manifests to be taken", 60, || self.kubectl(&["apply", "-f", "-"], manifests));
    }

    /// Installs or upgrades `release` with `values`, by helm next to the control plane. The chart is one of those next to the programs, or
    /// in a folder.
    pub fn helm(&self, release: &str, namespace: &str, chart: &str, values: &[&str]) {
        let found =
            |name: &str| self.programs.find(name).unwrap_or_else(|| name.into()).display().to_string();
        let (helm, chart) = (found("helm"), found(chart));
        let config = self.folder.join("control/admin.conf").display().to_string();
        let values = values.join(",");
        let words =
            ["on", "0", &helm, "--kubeconfig", &config, "upgrade", "-i", release, &chart, "-n", namespace];
        self.script_said(&[&words[..], &["--set", &values]].concat());
    }

    /// Returns the manifests that helm renders from a chart in a folder.
    pub fn rendered(&self, namespace: &str, chart: &str, values: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.arg("20").arg(self.programs.find("helm").expect("helm"));
        command.args(["template", namespace, chart, "-n", namespace, "--set", &values.join(",")]);
        let done = run(command, "");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Numbers of its Linux nodes.
    pub fn nodes(&self) -> RangeInclusive<u8> {
        let nodes = self.form.iter().find(|(name, _)| *name == "NODES").map_or("2", |(_, nodes)| nodes);
        1..=nodes.parse().expect("a number of nodes")
    }

    /// Installs a CNI plugin on the nodes.
    pub fn plugin(&self, name: &str) {
        let file = self.programs.find(name).expect("a program that the test needs");
        for node in self.nodes() {
            self.on(node, &["cp", file.to_str().expect("a name in ASCII"), "/opt/cni/bin/"]);
        }
    }

    /// The cluster's folder, in memory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Loads an image from a file into the nodes, and removes the file.
    pub fn load_file(&self, file: &Path) {
        self.script_said(&["load", file.to_str().expect("a name in ASCII")]);
        fs::remove_file(file).expect("our own file");
    }

    /// Reads one of the files next to the programs.
    pub fn manifest(&self, name: &str) -> String {
        let path = self.programs.find(name).unwrap_or_else(|| panic!("no {name}"));
        fs::read_to_string(path).expect("a manifest")
    }

    /// Loads an image with third-party programs into the nodes, at the paths of their own images: `(program, path there)`. Without a path
    /// it is a program of this host, with its libraries.
    pub fn image(&self, name: &str, programs: &[(&str, &str)], entry: &[&str]) {
        let files: Vec<String> = programs
            .iter()
            .map(|(program, path)| {
                if path.is_empty() {
                    return program.to_string();
                }
                let file = self.programs.find(program).unwrap_or_else(|| program.into());
                format!("{}={path}", file.display())
            })
            .collect();
        let words: Vec<&str> = files.iter().map(String::as_str).collect();
        self.load(name, &words, entry);
    }

    /// Loads an image with programs of this host and their libraries into the nodes.
    pub fn load(&self, name: &str, words: &[&str], entry: &[&str]) {
        let short: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let file = self.folder.join(format!("{short}.tar"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/container-image.sh");
        let mut command = Command::new("timeout");
        command.args(["120", script]).arg(&file).arg(name).args(words).arg("--").args(entry);
        let done = run(command, "");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        self.load_file(&file);
    }

    /// Waits until `so` succeeds. A timeout reports its last error.
    pub fn until<T>(&self, what: &str, seconds: u64, mut so: impl FnMut() -> Result<T, String>) -> T {
        let began = Instant::now();
        loop {
            match so() {
                Ok(found) => return found,
                Err(why) => assert!(
                    began.elapsed() < Duration::from_secs(seconds),
                    "expected {what} within {seconds} s: {why}\n{}",
                    self.events()
                ),
            }
            thread::sleep(Duration::from_millis(300));
        }
    }

    fn events(&self) -> String {
        let events = self.kubectl(&["get", "events", "-A", "--sort-by=.lastTimestamp"], "");
        let lines = events.unwrap_or_default();
        let lines: Vec<&str> = lines.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Waits until a node has this count of an allocatable resource.
    pub fn until_allocatable(&self, node: &str, resource: &str, count: u32) {
        let path = format!("{{.status.allocatable.{}}}", resource.replace('.', "\\."));
        self.until(&format!("{count} {resource} on {node}"), 90, || {
            let found = self.get(&["node", node], &path);
            if found == count.to_string() { Ok(()) } else { Err(format!("found '{found}'")) }
        });
    }

    /// Waits until pods run.
    pub fn until_running(&self, pods: &[&str]) {
        for pod in pods {
            self.until(&format!("pod {pod} to run"), 120, || {
                let phase = self.get(&["pod", pod], "{.status.phase}");
                if phase == "Running" { Ok(()) } else { Err(phase) }
            });
        }
    }

    /// Runs a program in a pod. It must succeed; returns its output.
    pub fn exec(&self, pod: &str, words: &[&str]) -> String {
        let done = self.kubectl(&[&["exec", pod, "--"], words].concat(), "");
        done.unwrap_or_else(|why| panic!("{pod}: {words:?}: {why}"))
    }

    /// Runs a server of perftest in one pod and its client in another, which connects to `address`; returns the numbers in the last
    /// line of the client's table.
    ///
    /// perftest measures the processor's clock at its start. If a busy machine disturbs that, all its times are infinite, so the run is
    /// repeated.
    pub fn perftest(&self, server: &str, client: &str, address: &str, words: &[&str]) -> Vec<f64> {
        let mut said = String::new();
        for _ in 0..3 {
            said = self.perftest_once(server, client, address, words);
            let row = said.lines().skip_while(|line| !line.contains("#bytes")).nth(1).unwrap_or_default();
            let row: Vec<f64> = row.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            // The deviation that follows in the table of latencies may be NaN on a busy machine.
            if row.len() >= 5 && row[..5].iter().all(|number| number.is_finite()) {
                return row;
            }
        }
        panic!("expected numbers, found {said}");
    }

    fn perftest_once(&self, server: &str, client: &str, address: &str, words: &[&str]) -> String {
        let said = self.served(server, words, client, &[words, &[address]].concat());
        assert!(said.contains("#bytes"), "expected perftest's table, found {said}");
        said
    }

    /// Connects a client in one pod to a server in another by rdma_cm, and has them exchange messages.
    ///
    /// Uses rping, because perftest of Debian 12 listens for its second connection (`-R`) after it has told its client to connect, and a
    /// client that connects earlier uses freed memory.
    pub fn rping(&self, server: &str, client: &str, address: &str) {
        let words = |end| ["rping", end, "-a", address, "-C", "10"];
        self.served(server, &words("-s"), client, &words("-c"));
    }

    /// Runs a server in one pod and a client in another, and returns the client's output.
    fn served(&self, server: &str, serves: &[&str], client: &str, asks: &[&str]) -> String {
        thread::scope(|scope| {
            let serving = scope.spawn(|| self.exec(server, serves));
            // The server may not listen yet.
            let asks = [&["exec", client, "--"], asks].concat();
            let said = self.until(&format!("{} to connect", serves[0]), 60, || self.kubectl(&asks, ""));
            serving.join().expect("the server's end");
            said
        })
    }

    /// Returns the warnings and errors in a node's kernel log, except the scheduler's remark that a busy machine left a pod's timer late.
    pub fn complaints(&self, node: u8) -> String {
        let said = self.on(node, &["dmesg", "-l", "emerg,alert,crit,err,warn"]);
        said.split_inclusive('\n').filter(|line| !line.contains("cfs_period_timer")).collect()
    }

    /// Runs a program on a node. It must succeed; returns its output.
    pub fn on(&self, node: u8, words: &[&str]) -> String {
        self.script_said(&[&["on", &node.to_string()], words].concat())
    }

    /// Ends a node as a power cut would.
    pub fn kill(&self, node: u8) {
        self.script_said(&["kill", &node.to_string()]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() && env::var_os("IRONVERBS_KEEP").is_some() {
            println!("kept: CLUSTER={} scripts/kubernetes.sh kubectl ..", self.folder.display());
            return;
        }
        let down = run(self.script(300, &["down"]), "");
        let said = String::from_utf8_lossy(&down.stderr).into_owned();
        let left = self.folder.exists();
        if !thread::panicking() {
            assert!(down.status.success() && !left && said.is_empty(), "{said}");
        }
    }
}
