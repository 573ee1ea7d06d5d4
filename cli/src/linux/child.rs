//! A child process that ends when this one does.
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

/// Time after which a process that was asked to exit is killed.
const POLITE: Duration = Duration::from_secs(3);

/// A process and its children, in their own process group, so that this process handles a terminal's Ctrl-C.
pub struct Child {
    process: process::Child,
    /// Its exit status, once its group was killed too.
    ended: Option<ExitStatus>,
}

impl Child {
    /// Starts it; `what` is its name in errors, and `orphan` the signal that it gets if this process dies.
    pub fn start(command: &mut Command, what: &str, orphan: Signal) -> Result<Self, String> {
        let begin = move || {
            // Otherwise it would inherit the signals that this process blocks.
            SigSet::empty().thread_set_mask()?;
            Ok(prctl::set_pdeathsig(orphan)?)
        };
        // SAFETY: between fork and exec only async-signal-safe calls are allowed: these are two plain system calls, and their errors
        // consist of numbers.
        unsafe { command.pre_exec(begin) };
        let child = command.process_group(0).spawn();
        child
            .map(|process| Self { process, ended: None })
            .map_err(|e| format!("cannot start {what}, {}: {e}", command.get_program().to_string_lossy()))
    }

    /// Its standard output, if that is a pipe. Can be taken once.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// Its exit status, if it has exited. Its group has been killed by then.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() && self.is_over() {
            self.kill();
        }
        self.ended
    }

    /// Asks it to exit, waits a while, and kills the rest of its group.
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
        // It is reaped after its group was killed, and only once: until then its PID cannot be reused.
        if self.ended.is_none() {
            let _ = killpg(self.pid(), Signal::SIGKILL);
            self.ended = self.process.wait().ok();
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    /// True if it has exited but not been reaped.
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
        // It was killed, and needs a processor to exit; it may not have been reaped yet.
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
