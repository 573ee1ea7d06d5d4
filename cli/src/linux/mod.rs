//! `ironverbs linux`: a Linux kernel running as a program, with the node's PF and VFs on its PCI bus under the stock mlx5 driver.
//!
//! `ironverbs serve` serves the functions of a node, and `vmlinux` is the kernel. This process starts both, copies bytes between its
//! standard streams and the guest's, and leaves nothing behind. `adapters` selects the guest's functions and starts their servers; `world`
//! is the folder that the guest starts from, with two scripts that run there; `console` implements the lines between the guest and this
//! process; `kernel` finds the kernel and builds its command line.

mod adapters;
mod child;
mod console;
mod kernel;
mod world;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use node::{Signals, dir};

use crate::options::Linux;
use crate::say::fail;
use adapters::Adapter;
pub use adapters::VfRange;
use child::Child;
use console::{Console, Lines, Report};
use kernel::Boot;
pub use kernel::Memory;
use world::World;

/// Exit status of failures outside the command.
const OURS: u8 = 125;
/// Time limit for the kernel to start, even on a busy machine.
const UP: Duration = Duration::from_secs(180);
/// Time limit for a guest that was asked to stop; its programs have two seconds of it.
const DOWN: Duration = Duration::from_secs(10);

pub fn linux(linux: &Linux) -> ExitCode {
    // Before other threads are started.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(e) => return fail(OURS, format!("cannot hold signals back: {e}")),
    };
    match run(linux, &signals) {
        Ok(status) => ExitCode::from(status),
        Err(why) => fail(OURS, why),
    }
}

fn run(linux: &Linux, signals: &Signals) -> Result<u8, String> {
    let kernel = kernel::find(linux.kernel.as_deref())?;
    let adapters = adapters::adapters(linux)?;
    let memory = Memory::with(adapters.iter().map(Adapter::functions).sum(), linux.memory)?;
    has_room(memory.bytes())?;
    raise_descriptors();
    let world = World::new(linux)?;
    let log = linux.log.clone().unwrap_or_else(|| world.path("log"));
    let cannot = |e: std::io::Error| format!("cannot write {}: {e}", log.display());
    let file = File::create(&log).map_err(cannot)?;
    // Without a terminal, the early output of user-mode Linux goes to the log, too.
    let more = || File::options().append(true).open(&log).map_err(cannot);
    let (out, err) = (more()?, more()?);
    drop(file);
    let console = Console::new(more()?).map_err(|e| format!("cannot make lines to the guest: {e}"))?;
    world.set_terminal(console.is_terminal())?;
    let (mut servers, mut plugs) = (Vec::new(), Vec::new());
    for adapter in &adapters {
        let more = adapter.plugs(world.dir());
        servers.push(adapter.serve(&more)?);
        plugs.extend(more);
    }
    let boot = Boot { kernel: &kernel, world: world.dir(), plugs: &plugs, cpus: linux.cpus(), memory };
    let mut command = boot.command(console.arguments());
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    // When asked to exit, a busy kernel may wait for itself forever; when it is killed, all its processes end.
    let kernel = || Child::start(&mut command, "the kernel", Signal::SIGKILL);
    let (mut lines, guest) = console.connect(kernel)?;
    let status = watch(&mut lines, world.dir(), guest, servers, signals);
    // The last bytes of the command and of the log.
    lines.drain();
    status.map_err(|why| match fs::read(&log) {
        Ok(said) => format!("{why}{}", last_lines(&said)),
        Err(_) => why,
    })
}

/// Follows the guest until its command has exited; returns the command's status.
fn watch(
    lines: &mut Lines,
    world: &Path,
    mut guest: Child,
    mut servers: Vec<Child>,
    signals: &Signals,
) -> Result<u8, String> {
    let began = Instant::now();
    let (mut up, mut asked) = (false, None::<(i32, Instant)>);
    let status = loop {
        match lines.report(Duration::from_millis(20)) {
            Ok(Report::Ready) => {
                up = true;
                lines.open(world).map_err(|e| format!("cannot carry bytes to the guest: {e}"))?;
            }
            Ok(Report::Ended(status)) => break status,
            Ok(Report::Failed(why)) => return Err(format!("the guest cannot start: {why}")),
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(20)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(status) = guest.ended() {
            // The last report may not have been read yet.
            match lines.report(Duration::from_millis(200)) {
                Ok(Report::Ended(status)) => break status,
                // Powered off or rebooted from inside the guest.
                _ if up && status.success() => break 0,
                _ => return Err(format!("the kernel ended by itself ({status})")),
            }
        }
        if let Some(status) = servers.iter_mut().find_map(Child::ended) {
            return Err(format!("a server of its functions ended by itself ({status})"));
        }
        if asked.is_none() {
            asked = signals.wait_for(Duration::ZERO).map(|signal| (signal, Instant::now()));
            asked.inspect(|_| lines.ask_to_stop());
        }
        match asked {
            Some((signal, when)) if !up || when.elapsed() > DOWN => break (128 + signal) as u8,
            None if !up && began.elapsed() > UP => {
                return Err(format!("the kernel is not up after {} s", UP.as_secs()));
            }
            _ => {}
        }
    };
    // Its files are written, and its functions are reset by their servers.
    guest.kill();
    servers.iter_mut().for_each(Child::end);
    Ok(asked.map_or(status, |(signal, _)| (128 + signal) as u8))
}

/// Raises the limit of open files, which this process's children inherit: each function takes several, and so does each process of the
/// guest.
fn raise_descriptors() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it few functions still work.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Checks that there is room for the kernel's memory: a file in shared memory; running out of room later would kill it by SIGBUS.
fn has_room(bytes: u64) -> Result<(), String> {
    let place = kernel::memory_place();
    match dir::free_bytes(&place) {
        Some(free) if free < bytes => Err(format!(
            "expected {} MiB for the guest's memory in {}, found {} MiB: --memory takes less, TMPDIR names another place",
            bytes >> 20,
            place.display(),
            free >> 20
        )),
        _ => Ok(()),
    }
}

/// The end of a kernel's log, to print below an error.
fn last_lines(log: &[u8]) -> String {
    const LINES: usize = 15;
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n  {}", line.trim_end())).collect()
}

/// Quotes `word` for a POSIX shell.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in word.as_encoded_bytes() {
        match byte {
            b'\'' => out.extend_from_slice(b"'\\''"),
            _ => out.push(*byte),
        }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let words = ["plain", "two words", "it's", "$HOME `id` \\ \"x\"", "", "a\nb", "-n"];
        let mut script = b"printf '%s\\0'".to_vec();
        for word in words {
            script.push(b' ');
            script.extend_from_slice(&quoted(OsStr::new(word)));
        }
        let said = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap().stdout;
        let said: Vec<&[u8]> = said.split(|byte| *byte == 0).collect();
        assert_eq!(said[..words.len()], words.map(str::as_bytes));
    }

    #[test]
    fn an_error_shows_the_end_of_the_log() {
        let log: String = (0..40).map(|i| format!("line {i}\r\n\n")).collect();
        let shown = last_lines(log.as_bytes());
        assert!(shown.starts_with("\n  line 25\n") && shown.ends_with("\n  line 39"), "{shown}");
        assert_eq!(last_lines(b""), "");
    }
}
