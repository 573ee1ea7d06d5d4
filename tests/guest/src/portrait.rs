//! Reports the state of a hung guest before it is killed: where its processors are, and what QEMU waits for.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// If QEMU's monitor does not answer within this time, its main loop is stuck.
const MONITOR: Duration = Duration::from_secs(3);
/// Time within which the kernel prints the requested information on the console.
const CONSOLE: Duration = Duration::from_secs(4);

/// Lists the threads of `pid`: name, state, processor time and current system call.
fn threads(pid: u32) -> String {
    let mut text = String::new();
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return text };
    for task in tasks.flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let field = |n: usize| fields.get(n).copied().unwrap_or("?");
        let _ = writeln!(
            text,
            "{} {}: state {}, ticks {}+{}, in {}",
            read("comm").trim(),
            task.file_name().to_string_lossy(),
            field(0),
            field(11),
            field(12),
            read("syscall").trim()
        );
    }
    text
}

/// Runs `commands` on the monitor at `socket` and returns its answers.
fn monitor(socket: &Path, commands: &[&str]) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.set_write_timeout(Some(MONITOR))?;
    let mut said = Vec::new();
    for command in commands {
        writeln!(stream, "{command}")?;
        let until = Instant::now() + MONITOR;
        let mut bytes = [0; 8192];
        while Instant::now() < until {
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(got) => said.extend_from_slice(&bytes[..got]),
                // An answer ends with silence.
                Err(_) if said.ends_with(b"(qemu) ") => break,
                Err(_) => {}
            }
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Reports the state of the guest of QEMU process `pid` with its monitor at `socket`. Asks the kernel by SysRq for blocked tasks and then
/// sends an NMI, on which the kernel prints on the console where the processor was, and panics.
pub fn of(pid: u32, socket: &Path) -> String {
    let (first, start) = (threads(pid), Instant::now());
    let asked = monitor(socket, &["info registers -a", "sendkey alt-sysrq-w"]);
    std::thread::sleep(CONSOLE);
    let said = asked.and_then(|said| monitor(socket, &["nmi"]).map(|_| said));
    let lines = match said {
        Ok(said) => {
            let kept = |line: &&str| ["RIP=", "CPU#", "RAX="].iter().any(|word| line.contains(word));
            said.lines().filter(kept).collect::<Vec<_>>().join("\n")
        }
        Err(error) => format!("its monitor does not answer: {error}"),
    };
    std::thread::sleep(CONSOLE);
    let later = start.elapsed().as_secs_f64();
    format!("threads of QEMU\n{first}threads {later:.1} s later\n{}processors\n{lines}", threads(pid))
}
