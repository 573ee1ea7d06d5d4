//! A process that ends when this one does.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::{self, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::{
    prctl,
    signal::{SigSet, Signal, kill, killpg},
    wait::{Id, WaitPidFlag, WaitStatus, waitid},
};
use nix::unistd::Pid;

/// A process that was asked to end is killed after this time.
const POLITE: Duration = Duration::from_secs(3);

/// A process and those it starts, in a process group of their own, so that a terminal's Ctrl-C is ours to answer.
pub struct Child {
    process: process::Child,
    /// How it ended, once its group was killed too.
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts it; `what` is its name in the error, and `orphan` the signal that it gets when this process ends without a word.
    pub fn start(command: &mut Command, what: &str, orphan: Signal) -> Result<Self, String> {
        let begin = move || {
            // Signals that we hold back would be held back in it too.
            SigSet::empty().thread_set_mask()?;
            Ok(prctl::set_pdeathsig(orphan)?)
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed: these are two plain system calls, and their
        // errors are made of numbers.
        unsafe { command.pre_exec(begin) };
        let child = command.process_group(0).spawn();
        child
            .map(|process| Self { process, ended: None })
            .map_err(|e| format!("cannot start {what}, {}: {e}", command.get_program().to_string_lossy()))
    }

    /// Its standard output, once, if that is a pipe.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// How it ended, if it has. Its group was killed then.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() && self.is_over() {
            self.kill();
        }
        self.ended
    }

    /// Asks it to end, waits a while, and kills what is left of its group.
    pub fn end(&mut self) {
        if self.ended().is_none() {
            let _ = kill(self.pid(), Signal::SIGTERM);
            let began = Instant::now();
            while self.ended().is_none() && began.elapsed() < POLITE {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    /// Kills it and its group, and waits for it.
    pub fn kill(&mut self) {
        // It is waited for after its group was killed, and only once: until then nobody else can have its number.
        if self.ended.is_none() {
            let _ = killpg(self.pid(), Signal::SIGKILL);
            self.ended = self.process.wait().ok();
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// True if it has ended, and still has its number.
    fn is_over(&self) -> bool {
        let how = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        !matches!(waitid(Id::Pid(self.pid()), how), Ok(WaitStatus::StillAlive))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn who_does_not_end_when_asked_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; sleep 1000 & echo $!; wait"]).stdout(process::Stdio::piped());
        let mut child = Child::start(&mut command, "a shell", Signal::SIGTERM).unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(child.stdout().unwrap()), &mut line).unwrap();
        child.end();
        // It was killed, and needs a processor to end; nobody may have waited for it then.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", line.trim())).unwrap_or_default();
        let began = Instant::now();
        while !(state().is_empty() || state().contains(") Z ")) {
            assert!(began.elapsed() < POLITE, "{}", state());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_cannot_be_started_is_named() {
        let why =
            Child::start(&mut Command::new("/nowhere/vmlinux"), "the kernel", Signal::SIGKILL).err().unwrap();
        assert!(why.starts_with("cannot start the kernel, /nowhere/vmlinux: "), "{why}");
    }
}
