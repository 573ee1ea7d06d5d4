//! Programs on a scratch node: processes that a test starts, exchanges lines with, and kills.

use node::{Node, NodeOptions};
use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

/// Returns true if this process, and programs it starts, have CAP_NET_RAW in effect, which raw packet queue pairs and flows require.
pub fn may_send_raw() -> bool {
    const NET_RAW: u32 = 13;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set >> NET_RAW & 1 != 0)
}

/// Returns true if root runs this process.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Returns the commands that run a program as this process's user, and, if that is root, as a user without rights.
pub fn users() -> Vec<&'static [&'static str]> {
    let nobody: &[_] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if is_root() { vec![&[], nobody] } else { vec![&[]] }
}

/// Sends signal `name` to process `pid`. Returns false if there is none.
pub fn signal(name: &str, pid: u32) -> bool {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).output();
    sent.is_ok_and(|sent| sent.status.success())
}

/// Writes a line for the test that started this process.
pub fn say(line: impl std::fmt::Display) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Reads a line of the test that started this process; `None` if it says no more.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).ok()? > 0).then(|| line.trim().to_owned())
}

/// Returns the directory of the built `ironverbs`, beside the calling test.
///
/// # Panics
/// It was not built.
pub fn built() -> PathBuf {
    let me = std::env::current_exe().expect("the test's own path");
    let dir = me.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let is_there = dir.join("ironverbs").exists() && dir.join("libironverbs_provider.so").exists();
    assert!(is_there, "no ironverbs and provider in {}: run `scripts/test.sh build` first", dir.display());
    dir.into()
}

/// Returns the number in environment variable `name`, if it is set.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the random seed: IRONVERBS_SEED, or 1.
pub fn seed() -> u64 {
    number("IRONVERBS_SEED").unwrap_or(1)
}

/// Starts the worker `flow` on function `fid` of the adapter in `scratch`.
///
/// # Panics
/// It does not start.
pub fn worker(flow: &str, scratch: &Scratch, fid: u8) -> Program {
    let dir = scratch.dir().to_string_lossy().into_owned();
    Program::start(Path::new(flow), &[&dir, &fid.to_string()]).expect("a worker")
}

/// Returns a TCP port of 127.0.0.1 that is currently free.
pub fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A node directory in memory, removed at the end of the test.
pub struct Scratch(testkit::Scratch);

impl Scratch {
    /// Chooses a unique path at which nothing exists yet.
    pub fn new() -> Self {
        Self(testkit::Scratch::new())
    }

    /// Creates an empty directory, for a node and other files.
    pub fn made() -> Self {
        Self(testkit::Scratch::made())
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.0.0
    }

    /// Creates a node in a new directory, with `vfs` VFs.
    #[track_caller]
    pub fn with_node(vfs: u8) -> (Self, Arc<Node>) {
        let scratch = Self::new();
        let node = scratch.node(vfs);
        (scratch, node)
    }

    /// Creates a node in it, with `vfs` VFs.
    #[track_caller]
    pub fn node(&self, vfs: u8) -> Arc<Node> {
        self.node_with(&NodeOptions { vfs: Some(vfs), ..NodeOptions::default() })
    }

    /// Creates a node in it, with `options`.
    #[track_caller]
    pub fn node_with(&self, options: &NodeOptions) -> Arc<Node> {
        Node::open_or_create(self.dir(), options).expect("a node")
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// A process that writes and reads lines.
pub struct Program {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
    name: String,
}

impl Program {
    /// Starts `path` with `args`.
    pub fn start(path: &Path, args: &[&str]) -> Result<Self, String> {
        let name = format!("{} {}", path.display(), args.join(" "));
        let mut child = Command::new(path)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start {name}: {e}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{name} has no pipes"));
        };
        let (say, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, lines, name })
    }

    /// Waits for the next line within `limit`.
    pub fn hear(&mut self, limit: Duration) -> Result<String, String> {
        self.lines.recv_timeout(limit).map_err(|_| match self.child.try_wait() {
            Ok(Some(status)) => format!("{} has ended: {status}", self.name),
            _ => format!("{} said nothing within {limit:?}", self.name),
        })
    }

    /// Waits for the next line, which must begin with `word`, and returns the rest.
    pub fn expect(&mut self, word: &str, limit: Duration) -> Result<String, String> {
        let line = self.hear(limit)?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().into()),
            None => Err(format!("{}: expected {word:?}, found {line:?}", self.name)),
        }
    }

    /// Writes a line to it.
    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.stdin, "{line}").map_err(|e| format!("{} does not listen: {e}", self.name))
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line, if one has arrived.
    pub fn heard(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Sends SIGSTOP.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    #[allow(unsafe_code)]
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: accesses no memory of ours; the child is not reaped before `kill`, so the id is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects two workers (binary `flow`) that wrote their `cards`, and waits until data moves both ways.
pub fn connect(programs: &mut [Program; 2], cards: &[String; 2], limit: Duration) -> Result<(), String> {
    programs[0].tell(&cards[1])?;
    programs[1].tell(&cards[0])?;
    for (word, answer) in [("connected", Some("go")), ("flowing", None)] {
        for program in programs.iter_mut() {
            program.expect(word, limit)?;
        }
        for program in programs.iter_mut() {
            answer.map_or(Ok(()), |line| program.tell(line))?;
        }
    }
    Ok(())
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
