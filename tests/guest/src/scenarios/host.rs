//! The host as the other end: tools run between programs with our provider on a node and a guest.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::scratch::{Scratch, scratch};
use crate::machine::Guest;
use crate::{Outcome, bound_to_us, built, failed};

/// Time limit for each tool in seconds.
const LIMIT: u64 = 90;
/// Address of the guest.
pub const GUEST: &str = "10.7.0.2";
/// Address of the device on the host.
pub const HOST: &str = "10.7.0.1";

/// Tools, each run twice: with the client on the host and with the client in the guest. perftest assumes that the peer supports as many
/// outstanding READs as itself, but the two differ.
const TOOLS: [(&str, &str); 5] = [
    ("ibv_rc_pingpong", "-g 1 -c -n 100"),
    ("ib_send_bw", "-x 1 -F -s 4096 -n 200 -u 18"),
    ("ib_write_bw", "-x 1 -F -s 65536 -n 30 -u 18"),
    ("ib_read_bw", "-x 1 -F -o 16 -s 65536 -n 30 -u 18"),
    ("ib_atomic_lat", "-x 1 -F -o 16 -n 50 -u 18"),
];

/// The node on the host, with the process that drives its uplink and the device that uses it.
pub struct Host {
    /// Directory for sockets and captures.
    pub dir: Scratch,
    node: PathBuf,
    ours: &'static str,
    theirs: &'static str,
    served: Option<Child>,
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut served) = self.served.take() {
            let _ = served.kill();
            let _ = served.wait();
        }
        let _ = fs::remove_dir_all(&self.node);
    }
}

fn ironverbs(words: &[&str], node: &Path) -> Command {
    let mut command = bound_to_us(built().join("ironverbs"));
    command.args(words).arg("--node").arg(node).stdin(Stdio::null());
    command
}

fn ends_well(mut command: Command) -> Outcome<String> {
    let output = command.output()?;
    let said = said(&output);
    if output.status.success() { Ok(said) } else { failed(format!("{command:?}: {said}")) }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Waits for a process that was asked to end, or ends by itself.
fn ended(mut child: Child, what: &str) -> Outcome<String> {
    let until = Instant::now() + Duration::from_secs(LIMIT);
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return failed(format!("{what}: not done after {LIMIT} s"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    let said = said(&output);
    if output.status.success() { Ok(said) } else { failed(format!("{what}: {}: {said}", output.status)) }
}

fn interrupt(child: Child, what: &str) -> Outcome<String> {
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    ended(child, what)
}

impl Host {
    /// Makes a node with device `ours`, which talks to the guest's device `theirs`.
    pub fn new(name: &str, ours: &'static str, theirs: &'static str) -> Outcome<Self> {
        let dir = scratch(name)?;
        let node = PathBuf::from(format!("/dev/shm/ivg-{}-{name}", std::process::id()));
        let host = Self { dir, node, ours, theirs, served: None };
        let mut create = ironverbs(&["node", "create"], &host.node);
        create.args(["--node-id", "1", "--vfs", "2"]);
        ends_well(create)?;
        let mut address = ironverbs(&["node", "address"], &host.node);
        address.args([ours, &format!("{HOST}/24")]);
        ends_well(address)?;
        Ok(host)
    }

    /// The node's directory.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Serves the node until [`part`](Self::part). `words` are the arguments; `socket` exists once it serves.
    pub fn serve(&mut self, words: &[&str], socket: &Path) -> Outcome {
        let mut serve = ironverbs(&["serve"], &self.node);
        serve.args(words);
        self.served = Some(serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        let until = Instant::now() + Duration::from_secs(20);
        while !socket.exists() {
            if Instant::now() > until {
                return failed(format!("expected {} within 20 s", socket.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops serving. Returns the server's output.
    pub fn part(&mut self) -> Outcome<String> {
        match self.served.take() {
            Some(served) => interrupt(served, "ironverbs serve"),
            None => failed("nothing is served"),
        }
    }

    /// Runs all tools, with the client on either side.
    pub fn converse(&self, guest: &mut Guest, ports: &[u16]) -> Outcome {
        TOOLS.iter().zip(ports).try_for_each(|((tool, options), port)| {
            host_asks(self, guest, *port, tool, options)?;
            guest_asks(self, guest, tool, options)
        })
    }

    /// Starts a tool on the host.
    fn start(&self, words: &str) -> Outcome<Child> {
        let mut command = ironverbs(&["run"], &self.node);
        command.arg("--").args(words.split_whitespace());
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }
}

/// QEMU arguments for a network card that connects to the host, at PCI address 9, and the ports by which the host reaches the guest's
/// tools.
pub fn way_to_host() -> Outcome<(Vec<u16>, [String; 4])> {
    let ports = TOOLS.iter().map(|_| free_port()).collect::<Outcome<Vec<u16>>>()?;
    let forwards: String = ports.iter().map(|p| format!(",hostfwd=tcp:127.0.0.1:{p}-:{p}")).collect();
    let words = [
        "-netdev".into(),
        format!("user,id=world{forwards}"),
        "-device".into(),
        "virtio-net-pci,netdev=world,addr=0x9".into(),
    ];
    Ok((ports, words))
}

/// Finds a TCP port of the host that is not in use.
fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Checks that a tool that exited with 0 printed no error.
fn sound(tool: &str, said: &str) -> Outcome {
    let wrong = ["invalid data", "Failed status", "Couldn't"].iter().any(|word| said.contains(word));
    if wrong { failed(format!("{tool}: {said}")) } else { Ok(()) }
}

/// Runs the client on the host; QEMU forwards its TCP connection to the guest.
fn host_asks(host: &Host, guest: &mut Guest, port: u16, tool: &str, options: &str) -> Outcome {
    let serving = guest.start_script(LIMIT, &format!("{tool} -d {} {options} -p {port}", host.theirs))?;
    guest.run(30, &format!("until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.05; done"))?;
    let client = ended(host.start(&format!("{tool} -d {} {options} -p {port} 127.0.0.1", host.ours))?, tool);
    let served = guest.wait(&serving)?;
    match client {
        Ok(said) => sound(tool, &said)?,
        Err(error) => {
            return failed(format!("{error}\n--- the server: status {}\n{}", served.status, served.text));
        }
    }
    // perftest's last exchange over TCP may find the forwarded connection closed.
    if served.status != 0
        && !(tool.starts_with("ib_") && served.text.contains("Couldn't read remote address"))
    {
        return failed(format!("{tool}: the server ended with {}: {}", served.status, served.text));
    }
    Ok(())
}

/// Runs the client in the guest.
fn guest_asks(host: &Host, guest: &mut Guest, tool: &str, options: &str) -> Outcome {
    let port = free_port()?;
    let server = host.start(&format!("{tool} -d {} {options} -p {port}", host.ours))?;
    let listens = format!(":{port:04X} ");
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| fs::read_to_string(t).unwrap_or_default());
        if tables.concat().lines().any(|line| line.contains(&listens) && line.contains(" 0A ")) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = guest.run(LIMIT, &format!("{tool} -d {} {options} -p {port} 10.0.2.2", host.theirs));
    let server = ended(server, tool);
    match (client, server) {
        (Ok(client), Ok(server)) => sound(tool, &client).and_then(|()| sound(tool, &server)),
        (Err(error), server) => failed(format!("{error}\n--- the server: {server:?}")),
        (Ok(_), Err(error)) => Err(error),
    }
}
