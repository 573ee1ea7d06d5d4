//! A scratch node, and other processes on it: this test binary again, in a role.
#![allow(unsafe_code)]

use crate::runtime::{Node, NodeOptions};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// A directory in memory that goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ironverbs-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        Self(Path::new("/dev/shm").join(name))
    }

    pub fn node(&self) -> Arc<Node> {
        self.node_with(&NodeOptions { vfs: Some(3), ..NodeOptions::default() })
    }

    pub fn node_with(&self, options: &NodeOptions) -> Arc<Node> {
        Node::open_or_create(&self.0, options).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Another process on a node.
pub struct Other {
    pub child: Child,
    said: BufReader<ChildStdout>,
}

const ROLE: &str = "IRONVERBS_TEST_ROLE";
const DIR: &str = "IRONVERBS_TEST_DIR";

impl Other {
    /// Starts this binary in `role`; it plays what `play` has for it.
    pub fn start(scratch: &Scratch, role: &str) -> Self {
        Self::start_with(scratch, role, &[])
    }

    /// What starts it.
    pub fn command(scratch: &Scratch, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture", "--test-threads=1", "runtime::tests::bed::other_process"])
            .env(ROLE, role)
            .env(DIR, &scratch.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    pub fn start_with(scratch: &Scratch, role: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Self::command(scratch, role).envs(env.iter().copied()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// The next thing it says after `>>`.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the other process has ended");
            // The test harness may have begun the line.
            if let Some((_, word)) = line.split_once(">>") {
                return word.trim().into();
            }
        }
    }

    pub fn hear_number(&mut self) -> u64 {
        self.hear().parse().unwrap()
    }

    /// Says something to it.
    pub fn tell(&mut self, what: &str) {
        use std::io::Write;
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn say(what: impl std::fmt::Display) {
    use std::io::Write;
    println!(">>{what}");
    std::io::stdout().flush().unwrap();
}

/// Waits until the parent lets go.
pub fn until_killed() -> ! {
    loop {
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
            std::process::exit(0);
        }
    }
}

/// Waits for the parent to say something; ends with it.
pub fn listen() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0);
    }
    line.trim().into()
}

/// Not a test of its own: what the other processes run.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var(DIR).unwrap());
    match role.as_str() {
        "arena" => super::death::leaves_blocks_behind(&dir),
        "function-lock" => super::death::dies_with_a_function(&dir),
        "node-lock" => super::death::dies_with_the_node(&dir),
        "memory" => super::copies::lends_memory(&dir),
        "lend" => super::lend::lends(&dir),
        "interrupt" => super::copies::waits_for_an_interrupt(&dir),
        "verbs" => super::verbs::serves(&dir, 2),
        "verbs-1" => super::verbs::serves(&dir, 1),
        "open" => super::node::opens(&dir),
        "crowd" => super::crowd::opens(&dir),
        "refused" => super::crowd::is_refused(&dir),
        "openers" => super::crowd::opens_many(&dir),
        "holds-lock" => super::damage::holds_the_lock(&dir),
        "holds-function" => super::damage::holds_a_function(&dir),
        "visit" => super::damage::visits(&dir),
        "stay" => super::damage::stays(&dir),
        "uplink" => super::link::holds_the_uplink(&dir),
        other => panic!("no role {other}"),
    }
}

/// Waits until `done`, at most five seconds.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(5), "{what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whole pages of private memory.
pub struct Pages {
    base: *mut u8,
    len: usize,
}

impl Pages {
    pub fn new(count: usize) -> Self {
        let len = count * 4096;
        // SAFETY: a new private mapping.
        let base = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self { base: base.cast(), len }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our own mapping; tests do not look while others write.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// Takes the pages from `first` on away.
    pub fn cut(&mut self, first: usize) {
        // SAFETY: our own mapping, from here on shorter.
        unsafe { libc::munmap(self.base.add(first * 4096).cast(), self.len - first * 4096) };
        self.len = first * 4096;
    }

    /// Makes the pages read-only.
    pub fn protect(&self) {
        // SAFETY: our own mapping.
        unsafe { libc::mprotect(self.base.cast(), self.len, libc::PROT_READ) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
