//! Additional processes of a test: its own binary again, in a role.

use std::{
    io::{BufRead, BufReader, Write},
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

const ROLE: &str = "IRONVERBS_TEST_ROLE";
const DIR: &str = "IRONVERBS_TEST_DIR";

/// A process that is killed on drop.
#[derive(Debug)]
pub struct Held(pub Child);

impl Deref for Held {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An additional process, killed on drop.
pub struct Other {
    /// The process.
    pub child: Held,
    said: BufReader<ChildStdout>,
}

impl Other {
    /// A command that starts this binary in `role`: its test `plays` reads [`role`] and acts accordingly, in
    /// `dir`.
    pub fn command(plays: &str, role: &str, dir: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("the name of this binary"));
        command
            .args(["--exact", "--nocapture", "--test-threads=1", plays])
            .env(ROLE, role)
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Starts the result of [`command`](Self::command).
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("another process");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        Self { child: Held(child), said }
    }

    /// The next line that the process [says](say).
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).expect("what it says");
            assert!(read > 0, "the other process has ended");
            // The test harness may have started the line.
            if let Some((_, word)) = line.split_once(">>") {
                return word.trim().into();
            }
        }
    }

    /// Like [`hear`](Self::hear), as a number.
    pub fn hear_number(&mut self) -> u64 {
        self.hear().parse().expect("a number")
    }

    /// Sends a line to the process, for its [`listen`].
    pub fn tell(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().expect("its input"), "{what}").expect("it listens");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("its end");
    }
}

/// The role of this process, and its directory; `None` in the test's own process.
pub fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(DIR)?.into()))
}

/// Sends a line to the process that started this one.
pub fn say(what: impl std::fmt::Display) {
    println!(">>{what}");
    let _ = std::io::stdout().flush();
}

/// Waits until the starting process ends.
pub fn until_killed() -> ! {
    loop {
        listen();
    }
}

/// Waits for a line from the starting process; exits with it.
pub fn listen() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(0);
    }
    line.trim().into()
}
