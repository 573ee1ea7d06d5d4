//! Runs a server and a client program against each other, with a time limit.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Poll interval while a pair starts or ends.
const TICK: Duration = Duration::from_millis(2);
/// Poll interval while a pair works: long, because on two processors the poll takes one of them from the pair.
const GLANCE: Duration = Duration::from_millis(25);
/// Time limit for a server to start listening.
const START: Duration = Duration::from_secs(15);
/// Time limit for a server to exit after its client.
const LINGER: Duration = Duration::from_secs(5);

/// The result of a pair.
pub struct Outcome {
    /// The client's stdout, where it was captured.
    pub output: String,
    /// Maximum observed resident size of the client, in KiB.
    pub resident_kib: u64,
}

/// Finds a free TCP port.
pub fn free_port() -> Result<u16, String> {
    let socket = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| format!("no TCP port to be had: {e}"))?;
    socket.local_addr().map(|a| a.port()).map_err(|e| e.to_string())
}

/// Starts `server`, waits until it listens on `port`, runs `client` to completion and then ends the server. The client's output is captured
/// if `quiet`, else shown.
pub fn run(
    server: &mut Command,
    client: &mut Command,
    port: u16,
    quiet: bool,
    limit: Duration,
) -> Result<Outcome, String> {
    let mut server = Running::start(server.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    server.drain();
    let started = Instant::now();
    while !listens(port) {
        if let Some(status) = server.ended()? {
            return Err(format!("the server ended before the client came ({status}){}", server.said()));
        }
        if started.elapsed() > START {
            return Err(format!("the server did not listen on port {port} within {} s", START.as_secs()));
        }
        thread::sleep(TICK);
    }
    if quiet {
        client.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut client = Running::start(client)?;
    client.drain();
    let started = Instant::now();
    let mut resident_kib = 0;
    let status = loop {
        resident_kib = resident_kib.max(client.resident_kib());
        if let Some(status) = client.ended()? {
            break status;
        }
        if started.elapsed() > limit {
            return Err(format!("not done within {} s{}", limit.as_secs(), client.said()));
        }
        thread::sleep(GLANCE);
    };
    let ended = Instant::now();
    while server.ended()?.is_none() && ended.elapsed() < LINGER {
        thread::sleep(TICK);
    }
    let output = client.output();
    if !status.success() {
        return Err(format!("the client failed ({status}){}{}", client.said(), server.said()));
    }
    Ok(Outcome { output, resident_kib })
}

/// True if a socket of this network namespace listens on `port`. Unlike a trial connection, reading the table does not disturb the server.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table)
            .is_ok_and(|text| text.lines().skip(1).any(|line| listening_port(line) == Some(port)))
    })
}

fn listening_port(line: &str) -> Option<u16> {
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let (_, port) = words.next()?.rsplit_once(':')?;
    (words.nth(1)? == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
}

/// A child that does not outlive this process, with its output collected in the background.
struct Running {
    child: Child,
    name: String,
    stdout: Option<thread::JoinHandle<String>>,
    stderr: Option<thread::JoinHandle<String>>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        Ok(Self { child, name, stdout: None, stderr: None })
    }

    fn drain(&mut self) {
        self.stdout = self.child.stdout.take().map(gather);
        self.stderr = self.child.stderr.take().map(gather);
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|e| format!("cannot wait for {}: {e}", self.name))
    }

    fn output(&mut self) -> String {
        self.stdout.take().and_then(|t| t.join().ok()).unwrap_or_default()
    }

    /// The last line of the program's error output, for an error message.
    fn said(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let stderr = self.stderr.take().and_then(|t| t.join().ok()).unwrap_or_default();
        let stdout = self.output();
        let last = |text: &str| text.lines().rev().map(str::trim).find(|l| !l.is_empty()).map(String::from);
        last(&stderr).or_else(|| last(&stdout)).map_or_else(String::new, |line| format!(": {line}"))
    }

    fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gather(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_count() {
        let line = "   0: 0100007F:4A38 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1";
        assert_eq!(listening_port(line), Some(0x4a38));
        assert_eq!(listening_port(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening_port("sl local_address"), None);
    }

    #[test]
    fn a_server_that_dies_at_once_is_reported_with_its_last_words() {
        let mut server = Command::new("sh");
        server.args(["-c", "echo no such device >&2; exit 4"]);
        let port = free_port().unwrap();
        let said = run(&mut server, &mut Command::new("true"), port, true, START).err().unwrap();
        assert!(said.contains("no such device") && said.contains('4'), "{said}");
    }
}
