//! A program of a test, with a time limit.

use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use testkit::Held;

/// A program in virtual time computes for half a minute on two quiet cores, and several times that beside others.
const LIMIT: Duration = Duration::from_secs(140);

/// A running program with its output collected. It is killed when dropped.
pub struct Running {
    child: Held,
    what: String,
    output: std::thread::JoinHandle<String>,
    errors: std::thread::JoinHandle<String>,
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = from.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Waits until all threads of process `pid` sleep; error messages call it `what`.
pub fn until_rest(pid: u32, what: &str) {
    let asleep = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    };
    let tasks = format!("/proc/{pid}/task");
    let rests = || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(asleep));
    let (start, mut looks) = (Instant::now(), 0);
    while looks < 5 {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} does not rest");
        looks = if rests() { looks + 1 } else { 0 };
        sleep(Duration::from_millis(20));
    }
}

impl Running {
    /// Wraps a child with stdout and stderr as pipes; error messages call it `what`.
    pub(super) fn of(mut child: Child, what: String) -> Self {
        let output = collect(child.stdout.take().expect("piped"));
        let errors = collect(child.stderr.take().expect("piped"));
        Self { child: Held(child), what, output, errors }
    }

    /// Starts a command that is not a program of a node; error messages call it `what`.
    pub fn start(command: &mut Command, what: &str) -> Self {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::of(piped.spawn().unwrap_or_else(|e| panic!("{what}: {e}")), what.into())
    }

    /// Returns its command, for messages.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Returns true if it has ended.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("kill").success(), "{} is gone already", self.what);
    }

    /// Stops it while it waits for others: in the middle of its work it may hold something that they need.
    pub fn stop(&self) {
        until_rest(self.child.id(), &self.what);
        self.signal("STOP");
    }

    /// Interrupts it with SIGINT and waits. Returns its output.
    pub fn interrupt(self) -> String {
        self.signal("INT");
        self.finish()
    }

    /// Waits for its end, which must be a failure. Returns its output.
    pub fn fails(self) -> String {
        let what = self.what.clone();
        let (succeeded, text) = self.ends();
        assert!(!succeeded, "{what} was expected to fail; it printed\n{text}");
        text
    }

    /// Waits for its end, with any status. Returns its output.
    pub fn end(self) -> String {
        self.ends().1
    }

    /// Waits for its successful end. Returns its output.
    pub fn finish(self) -> String {
        let what = self.what.clone();
        let (succeeded, text) = self.ends();
        assert!(succeeded, "{what} failed; it printed\n{text}");
        text
    }

    /// Waits for its end. Returns true if it succeeded, and its output.
    pub fn ends(mut self) -> (bool, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                let _ = self.child.kill();
                let _ = self.child.wait();
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
