//! Pairs of stock programs, a server and its client.

use super::{Node, Running};
use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    sync::atomic::{AtomicU16, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

/// perftest's own port, for tests that name none.
const PERFTEST: u16 = 18515;

static PORTS: AtomicU16 = AtomicU16::new(0);

/// The output of both sides.
pub struct Pair {
    /// The server's output.
    pub server: String,
    /// The client's output.
    pub client: String,
}

/// Returns a port that no other pair uses, and at the moment no other program. Each test process has its own range, below the ports that
/// the kernel chooses for clients.
pub fn port() -> String {
    let first = 10_000 + (std::process::id() % 700) as u16 * 32;
    loop {
        let port = first + PORTS.fetch_add(1, Ordering::Relaxed) % 32;
        if port != PERFTEST && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port.to_string();
        }
    }
}

/// Waits until a process listens on `port`.
fn listening(port: &str, server: &mut Running) {
    waiting(server, || is_heard(port));
}

/// Waits until `so` returns true, or the server has ended.
fn waiting(server: &mut Running, so: impl Fn() -> bool) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) && !server.ended() && !so() {
        sleep(Duration::from_millis(5));
    }
}

/// Returns true if any process listens on `port`.
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

/// The range of listeners' locks in a node's file of ports.
pub const LISTENING: std::ops::Range<u64> = 1 << 32..2 << 32;

/// Counts the locks on a range of a node's file of ports, of any process.
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

/// Returns the lines that consist of numbers.
pub fn figures(said: &str) -> Vec<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    said.lines().filter_map(numbers).collect()
}

impl Pair {
    /// Runs a pair of programs on two linked nodes, on `iron1` of each. If one fails, the error is their output.
    pub fn across(server: &Node, client: &Node, tool: &str, options: &[&str]) -> Result<Self, String> {
        let port = port();
        // On InfiniBand by LID.
        let gid: &[&str] = match tool.starts_with("ib_") {
            _ if server.is_infiniband() => &[],
            true => &["-x", "1"],
            false => &["-g", "1"],
        };
        let words = [&[tool, "-d", "iron1", "-p", &port], gid, options].concat();
        let mut first = server.start(&words);
        listening(&port, &mut first);
        let second = client.start(&[&words[..], &["127.0.0.1"]].concat());
        Self::ends(first, second)
    }

    /// Waits for both. If one failed, the error is their output.
    fn ends(server: Running, client: Running) -> Result<Self, String> {
        let what = client.what().to_owned();
        let ((client_succeeded, client), (server_succeeded, server)) = (client.ends(), server.ends());
        if client_succeeded && server_succeeded {
            return Ok(Self { server, client });
        }
        Err(format!("{what} failed; the server printed\n{server}\nthe client printed\n{client}"))
    }

    /// Runs a pair of `ibv_rc_pingpong` on a lossy wire. It has no final handshake: a side exits when it has received everything, and if
    /// its last acknowledgement is lost, it cannot be repeated. The peer then runs out of retries, as IBTA 9.7.5.1.3 requires; such a run
    /// is repeated, at most twice.
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

    /// Runs a pair of programs on functions served at `sockets`, with addresses 10.0.0.1 and 10.0.0.2: each reaches only its own function,
    /// over vfio-user, and resolves the other's MAC on the wire.
    pub fn served(node: &Node, sockets: &[PathBuf; 2], tool: &str, options: &[&str]) -> Self {
        let gid = if tool.starts_with("ib_") { "-x" } else { "-g" };
        Self::served_at(node, sockets, ["10.0.0.1", "10.0.0.2"], |me, port| {
            let more: &[&str] = if me == 0 { &[] } else { &["127.0.0.1"] };
            let words = [&[tool, "-d", "iron0", gid, "1", "-p", port], options, more].concat();
            words.into_iter().map(String::from).collect()
        })
    }

    /// The same for any programs with `addresses`: command lines of the server (0), which listens on a port, and of the client.
    pub fn served_at(
        node: &Node,
        sockets: &[PathBuf; 2],
        addresses: [&str; 2],
        words: impl Fn(usize, &str) -> Vec<String>,
    ) -> Self {
        let (first, second) = Self::served_under_way(node, sockets, addresses, words);
        let client = second.finish();
        Self { server: first.finish(), client }
    }

    /// Starts server and client of [`served_at`](Self::served_at).
    pub fn served_under_way(
        node: &Node,
        sockets: &[PathBuf; 2],
        addresses: [&str; 2],
        words: impl Fn(usize, &str) -> Vec<String>,
    ) -> (Running, Running) {
        let port = port();
        let launch = |me: usize| {
            let (socket, words) = (sockets[me].display().to_string(), words(me, &port));
            let view = ["--vfio-user", &socket, "--address", addresses[me], "--"];
            let words = words.iter().map(String::as_str);
            node.ironverbs(&["run"], &view.into_iter().chain(words).collect::<Vec<_>>())
        };
        let mut first = launch(0);
        listening(&port, &mut first);
        (first, launch(1))
    }

    /// Runs a pair of programs that connect by the connection manager: `iron<i>` listens for `iron<j>`.
    pub fn managed(node: &Node, server: &[&str], client: &[&str]) -> Self {
        let first = Self::listener(node, server);
        let client = node.start(client).finish();
        Self { server: first.finish(), client }
    }

    /// Starts a program that listens through the connection manager, and waits until it does.
    pub fn listener(node: &Node, server: &[&str]) -> Running {
        let before = locks(node, LISTENING);
        let mut first = node.start(server);
        waiting(&mut first, || locks(node, LISTENING) != before);
        first
    }

    /// Starts a server and, when it listens, a client.
    fn start(node: &Node, server: &[&str], client: &[&str], port: &str) -> (Running, Running) {
        let mut first = node.start(server);
        listening(port, &mut first);
        (first, node.start(client))
    }

    /// Starts a server and, when it listens on the common port, its client; each of `words` returns the command for that port.
    pub fn listening(
        node: &Node,
        server: impl Fn(&str) -> Vec<String>,
        client: impl Fn(&str) -> Vec<String>,
    ) -> Self {
        let port = port();
        let (server, client) = (server(&port), client(&port));
        let words = [&server, &client].map(|of| of.iter().map(String::as_str).collect::<Vec<_>>());
        let (first, second) = Self::start(node, &words[0], &words[1], &port);
        Self::ends(first, second).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Runs a pair of a libibverbs example program.
    pub fn pingpong(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> Self {
        Self::try_pingpong(node, tool, server, client, options).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same; if one of the pair fails, the error is the output.
    pub fn try_pingpong(
        node: &Node,
        tool: &str,
        server: &str,
        client: &str,
        options: &[&str],
    ) -> Result<Self, String> {
        let (first, second) = Self::between(node, tool, server, client, &[&["-g", "1"], options].concat());
        Self::ends(first, second)
    }

    /// Runs a pair of programs that exchange their addresses over TCP, without a GID index.
    pub fn plain(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> Self {
        let (first, second) = Self::between(node, tool, server, client, options);
        Self::ends(first, second).unwrap_or_else(|said| panic!("{said}"))
    }

    /// Runs a pair of a perftest program to completion.
    pub fn perftest(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> Self {
        let (first, second) = Self::perftest_under_way(node, tool, server, client, options);
        let client = second.finish();
        Self { server: first.finish(), client }
    }

    /// Starts server and client of a perftest program.
    pub fn perftest_under_way(
        node: &Node,
        tool: &str,
        server: &str,
        client: &str,
        options: &[&str],
    ) -> (Running, Running) {
        Self::between(node, tool, server, client, &[&["-x", "1", "-F"], options].concat())
    }

    /// Starts a server on one device and, when it listens, its client on another.
    fn between(node: &Node, tool: &str, server: &str, client: &str, options: &[&str]) -> (Running, Running) {
        let port = port();
        let common = |dev| [&[tool, "-d", dev, "-p", &port], options].concat();
        Self::start(node, &common(server), &[&common(client)[..], &[&address(server)]].concat(), &port)
    }

    /// Returns the rows of figures in the output of perftest's client.
    pub fn rows(&self) -> Vec<Vec<f64>> {
        figures(&self.client).into_iter().filter(|row| row.len() >= 3).collect()
    }

    /// Fails unless a pingpong ran to completion with correct data.
    pub fn is_whole(&self) {
        let said = format!("{}{}", self.client, self.server);
        let ended = self.client.contains("iters in") || self.client.contains("success");
        assert!(ended && !said.contains("invalid data"), "{said}");
    }

    /// Fails unless perftest printed figures, with a nonzero one in every row.
    pub fn has_figures(&self, what: &str) {
        let rows = self.rows();
        assert!(!rows.is_empty(), "{what} printed no figures: {}", self.client);
        assert!(rows.iter().all(|row| row[1..].iter().any(|v| *v > 0.0)), "{what}: {rows:?}");
    }
}
