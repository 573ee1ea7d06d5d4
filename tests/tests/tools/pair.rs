//! Running a pair of stock programs on a node of their own, bounded in time.
#![allow(dead_code)] // each test program uses its part

use std::{
    ffi::OsString,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU16, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_secs(90);
/// Two cores: one pair at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static PORTS: AtomicU16 = AtomicU16::new(0);

/// The `ironverbs` command: `IRONVERBS_BIN`, or the one built beside this test, release before debug.
pub fn ironverbs() -> PathBuf {
    if let Some(path) = std::env::var_os("IRONVERBS_BIN") {
        return path.into();
    }
    let me = std::env::current_exe().expect("the test's own path");
    let target = me.ancestors().nth(3).expect("target/<profile>/deps/<test>");
    ["release", "debug"]
        .iter()
        .map(|profile| target.join(profile).join("ironverbs"))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no ironverbs below {}: run `make build` first", target.display()))
}

/// The command and the provider in a directory of their own, which is gone when this is.
struct Installed(PathBuf);

impl Installed {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("ironverbs-test-{}-installed", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a directory to install to");
        let from = ironverbs();
        for name in ["ironverbs", "libironverbs_loader.so", "libironverbs_provider.so"] {
            fs::copy(from.with_file_name(name), dir.join(name)).expect("a copy of what was built");
        }
        Self(dir)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A node that is gone when the test ends.
pub struct Node {
    dir: PathBuf,
    vfs: u8,
    env: Vec<(&'static str, &'static str)>,
    options: Vec<String>,
    prefix: Vec<String>,
    installed: Option<Installed>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Node {
    pub fn new(name: &str, vfs: u8) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let dir = Path::new("/dev/shm").join(format!("ironverbs-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self {
            dir,
            vfs,
            env: Vec::new(),
            options: Vec::new(),
            prefix: Vec::new(),
            installed: None,
            _turn: Some(turn),
        }
    }

    /// Another node for the same test, with its own number.
    pub fn beside(&self, id: u16) -> Self {
        let dir = self.dir.with_extension(id.to_string());
        let _ = fs::remove_dir_all(&dir);
        let options = ["--node-id".into(), id.to_string()].to_vec();
        Self {
            dir,
            vfs: self.vfs,
            env: self.env.clone(),
            options,
            prefix: Vec::new(),
            installed: None,
            _turn: None,
        }
    }

    /// Starts a command of `ironverbs` itself, such as `serve`, on the node.
    pub fn ironverbs(&self, command: &[&str], args: &[&str]) -> Running {
        let child = Command::new(ironverbs())
            .args(command)
            .arg("--node")
            .arg(&self.dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start ironverbs");
        Running::of(child, format!("{} {}", command.join(" "), args.join(" ")))
    }

    /// The same with ports that speak InfiniBand.
    pub fn on_infiniband(mut self) -> Self {
        self.options.extend(["--link-layer".into(), "infiniband".into()]);
        self
    }

    /// The same for programs that are started by way of the command `prefix`.
    pub fn under(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|word| (*word).into()).collect();
        self
    }

    /// The same with a command that every user may read: a checkout below `/root` is root's alone.
    pub fn installed(mut self) -> Self {
        self.installed = Some(Installed::new());
        self
    }

    /// The command that programs are run by.
    pub fn binary(&self) -> PathBuf {
        self.installed.as_ref().map_or_else(ironverbs, |installed| installed.0.join("ironverbs"))
    }

    /// The same with an environment variable set for all programs.
    pub fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    /// The node's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn command(&self, program: &[&str]) -> Command {
        let mut words = self.prefix.iter().map(OsString::from).chain([self.binary().into()]);
        let mut command = Command::new(words.next().expect("ironverbs at least"));
        command
            .args(words)
            .arg("run")
            .arg("--node")
            .arg(&self.dir)
            .arg("--vfs")
            .arg(self.vfs.to_string())
            .args(&self.options)
            .arg("--")
            .args(program);
        command.envs(self.env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a program.
    pub fn start(&self, program: &[&str]) -> Running {
        let child = self.command(program).spawn().expect("start ironverbs run");
        Running::of(child, program.join(" "))
    }

    /// Runs a program to its end; its output.
    pub fn run(&self, program: &[&str]) -> String {
        self.start(program).finish()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A program under way, its output collected; killed when dropped.
pub struct Running {
    child: Held,
    what: String,
    output: std::thread::JoinHandle<String>,
    errors: std::thread::JoinHandle<String>,
}

/// A process that does not outlive its test.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Running {
    fn of(mut child: Child, what: String) -> Self {
        let output = collect(child.stdout.take().expect("piped"));
        let errors = collect(child.stderr.take().expect("piped"));
        Self { child: Held(child), what, output, errors }
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        self.child.0.try_wait().expect("wait").is_some()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Ends it now.
    pub fn kill(&mut self) {
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let told = Command::new("kill").args([&format!("-{name}"), &self.child.0.id().to_string()]).status();
        assert!(told.expect("kill").success(), "{} is gone already", self.what);
    }

    /// Stops it when it waits for others: stopped in the midst of its work it may have what they need.
    pub fn stop(&self) {
        let asleep = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        };
        let tasks = format!("/proc/{}/task", self.child.0.id());
        let rests = || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(asleep));
        let (start, mut looks) = (Instant::now(), 0);
        while looks < 5 {
            assert!(start.elapsed() < Duration::from_secs(20), "{} does not rest", self.what);
            looks = if rests() { looks + 1 } else { 0 };
            sleep(Duration::from_millis(20));
        }
        self.signal("STOP");
    }

    /// Asks it to end by SIGINT and waits; its output.
    pub fn interrupt(self) -> String {
        self.signal("INT");
        self.finish()
    }

    /// Waits for its end, which must be a failure; its output.
    pub fn fails(self) -> String {
        let what = self.what.clone();
        let (succeeded, text) = self.ends();
        assert!(!succeeded, "{what} was expected to fail; it printed\n{text}");
        text
    }

    /// Waits for its end, of whatever kind; its output.
    pub fn end(self) -> String {
        self.ends().1
    }

    /// Waits for its end; its output.
    pub fn finish(self) -> String {
        let what = self.what.clone();
        let (succeeded, text) = self.ends();
        assert!(succeeded, "{what} failed; it printed\n{text}");
        text
    }

    /// Waits for its end: whether it succeeded, and its output.
    pub fn ends(mut self) -> (bool, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.0.try_wait().expect("wait") {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                let _ = self.child.0.kill();
                let _ = self.child.0.wait();
                break None;
            }
            sleep(Duration::from_millis(5));
        };
        let text = self.output.join().expect("reader") + &self.errors.join().expect("reader");
        match status {
            None => panic!("{} did not end within {LIMIT:?}; it printed\n{text}", self.what),
            Some(status) => (status.success(), text),
        }
    }
}

/// What both sides printed.
pub struct Pair {
    pub server: String,
    pub client: String,
}

/// A port that no other pair of this test has.
pub fn port() -> String {
    let base = 20_000 + (std::process::id() % 20_000) as u16;
    (base + PORTS.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// Waits until somebody listens on `port`.
fn listening(port: &str, server: &mut Running) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) && !server.ended() && !is_heard(port) {
        sleep(Duration::from_millis(5));
    }
}

/// Whether somebody listens on `port`.
pub fn is_heard(port: &str) -> bool {
    let wanted = format!(":{:04X} ", port.parse::<u16>().expect("a port"));
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| fs::read_to_string(t).unwrap_or_default());
    let heard = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default().to_string() + " ";
        local.ends_with(&wanted) && words.nth(1) == Some("0A")
    };
    tables.iter().any(|t| t.lines().any(heard))
}

/// Where the locks of those who listen begin and end in a node's file of ports.
pub const LISTENING: std::ops::Range<u64> = 1 << 32..2 << 32;

/// Locks on a range of a node's file of ports, by any process.
pub fn locks(node: &Node, range: std::ops::Range<u64>) -> usize {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = fs::metadata(node.dir().join("ports")) else { return 0 };
    let inode = format!(":{}", meta.ino());
    let begins = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let of_it = words.get(5).is_some_and(|file| file.ends_with(&inode));
        of_it
            && words
                .get(6)
                .and_then(|first| first.parse().ok())
                .is_some_and(|first: u64| range.contains(&first))
    };
    fs::read_to_string("/proc/locks").unwrap_or_default().lines().filter(begins).count()
}

/// 127.0.0.(i+1) for `iron<i>`.
pub fn address(dev: &str) -> String {
    let fid: u8 = dev.trim_start_matches("iron").parse().expect("iron<number>");
    format!("127.0.0.{}", fid + 1)
}

impl Pair {
    /// A pair of programs on two nodes, joined by some link: `iron1` of each. Or what was printed, if one failed.
    pub fn across(server: &Node, client: &Node, tool: &str, options: &[&str]) -> Result<Self, String> {
        let port = port();
        let gid = if tool.starts_with("ib_") { "-x" } else { "-g" };
        let words = [&[tool, "-d", "iron1", gid, "1", "-p", &port], options].concat();
        let mut first = server.start(&words);
        listening(&port, &mut first);
        let second = client.start(&[&words[..], &["127.0.0.1"]].concat());
        Self::ends(first, second)
    }

    /// The end of both, or what was printed by a pair of which one failed.
    fn ends(server: Running, client: Running) -> Result<Self, String> {
        let what = client.what.clone();
        let ((client_succeeded, client), (server_succeeded, server)) = (client.ends(), server.ends());
        if client_succeeded && server_succeeded {
            return Ok(Self { server, client });
        }
        Err(format!("{what} failed; the server printed\n{server}\nthe client printed\n{client}"))
    }

    /// A pair of `ibv_rc_pingpong` where frames are lost. It has no last word: who has all it waits for goes, and if its
    /// last acknowledgement is lost nobody is there to repeat it. Its peer then runs out of retries, as IBTA 9.7.5.1.3
    /// wants it; a run that ended so is made again, twice at most.
    pub fn where_frames_are_lost(run: impl Fn() -> Result<Self, String>) -> Self {
        let unanswered = |said: &String| said.contains("transport retry counter exceeded");
        let mut ran = run();
        for _ in 0..2 {
            if ran.as_ref().err().is_some_and(unanswered) {
                ran = run();
            }
        }
        ran.unwrap_or_else(|said| panic!("{said}"))
    }

    /// A pair of programs on functions that are served at `sockets`, with addresses 10.0.0.1 and 10.0.0.2: each reaches
    /// its own over vfio-user and nothing else.
    pub fn served(node: &Node, sockets: &[PathBuf; 2], tool: &str, options: &[&str]) -> Self {
        let port = port();
        let gid = if tool.starts_with("ib_") { "-x" } else { "-g" };
        let launch = |me: usize, more: &[&str]| {
            let (own, other) = (format!("10.0.0.{}", me + 1), 2 - me);
            let neighbour = format!("10.0.0.{other}=02:1b:56:00:00:{other:02x}");
            let socket = sockets[me].display().to_string();
            let view = ["--vfio-user", &socket, "--address", &own, "--neighbour", &neighbour, "--"];
            let words = [&view[..], &[tool, "-d", "iron0", gid, "1", "-p", &port], options, more].concat();
            node.ironverbs(&["run"], &words)
        };
        let mut first = launch(0, &[]);
        listening(&port, &mut first);
        let client = launch(1, &["127.0.0.1"]).finish();
        Self { server: first.finish(), client }
    }

    /// A pair of programs that find each other by the connection manager: `iron<i>` listens for `iron<j>`.
    pub fn managed(node: &Node, server: &[&str], client: &[&str]) -> Self {
        let first = Self::listener(node, server);
        let client = node.start(client).finish();
        Self { server: first.finish(), client }
    }

    /// Starts a program that listens by the connection manager, and waits until it does.
    pub fn listener(node: &Node, server: &[&str]) -> Running {
        let before = locks(node, LISTENING);
        let mut first = node.start(server);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) && !first.ended() && locks(node, LISTENING) == before
        {
            sleep(Duration::from_millis(5));
        }
        first
    }

    /// Starts a server, and when it listens a client.
    fn start(node: &Node, server: &[&str], client: &[&str], port: &str) -> (Running, Running) {
        let mut first = node.start(server);
        listening(port, &mut first);
        (first, node.start(client))
    }

    fn run(node: &Node, server: &[&str], client: &[&str], port: &str) -> Self {
        let (first, second) = Self::start(node, server, client, port);
        Self::ends(first, second).unwrap_or_else(|said| panic!("{said}"))
    }

    /// A server and, when it listens on the port both are told, its client; each `words` make a command of that port.
    pub fn listening(
        node: &Node,
        server: impl Fn(&str) -> Vec<String>,
        client: impl Fn(&str) -> Vec<String>,
    ) -> Self {
        let port = port();
        let (server, client) = (server(&port), client(&port));
        let words = [&server, &client].map(|of| of.iter().map(String::as_str).collect::<Vec<_>>());
        Self::run(node, &words[0], &words[1], &port)
    }

    /// A pair of a libibverbs example program.
    pub fn pingpong(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> Self {
        Self::try_pingpong(node, tool, server, client, options).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same, or what was printed by a pair of which one failed.
    pub fn try_pingpong(
        node: &Node,
        tool: &str,
        server: &str,
        client: &str,
        options: &[&str],
    ) -> Result<Self, String> {
        let port = port();
        let common = |dev| [&[tool, "-d", dev, "-g", "1", "-p", &port], options].concat();
        let to = address(server);
        let (first, second) =
            Self::start(node, &common(server), &[&common(client)[..], &[&to]].concat(), &port);
        Self::ends(first, second)
    }

    /// A pair of programs that find each other by what they tell each other over TCP: no GID index is given.
    pub fn plain(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> Self {
        let port = port();
        let common = |dev| [&[tool, "-d", dev, "-p", &port], options].concat();
        let to = address(server);
        Self::run(node, &common(server), &[&common(client)[..], &[&to]].concat(), &port)
    }

    /// A pair of a perftest program, run to its end.
    pub fn perftest(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> Self {
        let (first, second) = Self::perftest_under_way(node, tool, server, client, options);
        let client = second.finish();
        Self { server: first.finish(), client }
    }

    /// Server and client of a perftest program, started.
    pub fn perftest_under_way(
        node: &Node,
        tool: &str,
        server: &str,
        client: &str,
        options: &[&str],
    ) -> (Running, Running) {
        let port = port();
        let common = |dev| [&[tool, "-d", dev, "-x", "1", "-F", "-p", &port], options].concat();
        let to = address(server);
        Self::start(node, &common(server), &[&common(client)[..], &[&to]].concat(), &port)
    }

    /// The rows of figures that perftest's client printed.
    pub fn rows(&self) -> Vec<Vec<f64>> {
        let numbers =
            |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
        self.client.lines().filter_map(numbers).filter(|row| row.len() >= 3).collect()
    }

    /// Fails unless a pingpong ran to its end and its data were right.
    pub fn is_whole(&self) {
        let said = format!("{}{}", self.client, self.server);
        let ended = self.client.contains("iters in") || self.client.contains("success");
        assert!(ended && !said.contains("invalid data"), "{said}");
    }

    /// Fails unless perftest printed figures, in every row one that is not zero.
    pub fn has_figures(&self, what: &str) {
        let rows = self.rows();
        assert!(!rows.is_empty(), "{what} printed no figures: {}", self.client);
        assert!(rows.iter().all(|row| row[1..].iter().any(|v| *v > 0.0)), "{what}: {rows:?}");
    }
}
