//! The holder of a lock that other processes wait for: its name, and whether it is stopped.

use super::jail;
use std::{fmt, fs, path::Path};

/// Reasons why a process is stopped.
const REASONS: [&str; 3] = ["stopped by a signal", "stopped by a debugger", "frozen with its control group"];

/// A process that other processes wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its PID in this PID namespace; 0 if it is hidden by another one.
    pub pid: u32,
    /// The name of its program, if known.
    pub program: String,
    /// Why it is stopped, if it is.
    pub stopped: Option<&'static str>,
}

impl Holder {
    /// Looks up process `pid`, directly or, in a jail, through the asker.
    pub fn of(pid: u32) -> Self {
        jail::ask(pid).unwrap_or_else(|| Self::look(pid))
    }

    /// Looks up process `pid` in `/proc`.
    pub(super) fn look(pid: u32) -> Self {
        let nobody = Self { pid, program: String::new(), stopped: None };
        if pid == 0 {
            return nobody;
        }
        let dir = format!("/proc/{pid}");
        let Ok(stat) = fs::read_to_string(format!("{dir}/stat")) else { return nobody };
        // The name is in parentheses and may contain any characters, including parentheses.
        let Some((front, rest)) = stat.rsplit_once(')') else { return nobody };
        let program = front.split_once('(').map_or("", |(_, name)| name);
        let stopped = match rest.trim_start().chars().next() {
            Some('T') => Some(REASONS[0]),
            Some('t') => Some(REASONS[1]),
            _ => is_frozen(&dir).then_some(REASONS[2]),
        };
        // The name becomes part of a one-line error.
        let program = program.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Self { pid, program, stopped }
    }

    /// Encodes this as bytes for [`decode`](Self::decode): PID, reason counted from 1, program.
    pub(super) fn encode(&self) -> Vec<u8> {
        let reason = REASONS.iter().position(|known| Some(*known) == self.stopped).map_or(0, |at| at + 1);
        let mut bytes = self.pid.to_ne_bytes().to_vec();
        bytes.push(reason as u8);
        bytes.extend_from_slice(self.program.as_bytes());
        bytes
    }

    /// The reverse of [`encode`](Self::encode).
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let (reason, program) = rest.split_first()?;
        let stopped = usize::from(*reason).checked_sub(1).and_then(|at| REASONS.get(at)).copied();
        let program = String::from_utf8_lossy(program).into_owned();
        Some(Self { pid: u32::from_ne_bytes(*pid), program, stopped })
    }

    /// Another thread of this process.
    pub fn of_ourselves() -> Self {
        Self { stopped: None, ..Self::of(std::process::id()) }
    }
}

/// True if the process behind `dir` is in a frozen control group (version 2).
fn is_frozen(dir: &str) -> bool {
    let groups = fs::read_to_string(format!("{dir}/cgroup")).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let events = fs::read_to_string(Path::new("/sys/fs/cgroup").join(group).join("cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "a process of another PID namespace")?,
            pid => write!(f, "process {pid}")?,
        }
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        match self.stopped {
            Some(how) => write!(f, ", which is {how}"),
            None => write!(f, ", which has not given it back"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_distinguished_from_a_running_one() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let until = |stopped: Option<&str>| {
            let found = (0..500).map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(2));
                Holder::of(pid)
            });
            found.into_iter().find(|h| h.stopped == stopped && h.program == "sleep").is_some()
        };
        assert!(until(None));
        #[allow(unsafe_code)]
        // SAFETY: sends signals to a child of this test.
        unsafe {
            libc::kill(pid as libc::pid_t, libc::SIGSTOP)
        };
        assert!(until(Some("stopped by a signal")));
        assert_eq!(
            Holder::of(pid).to_string(),
            format!("process {pid} (sleep), which is stopped by a signal")
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            Holder::of(0).to_string(),
            "a process of another PID namespace, which has not given it back"
        );
    }
}
