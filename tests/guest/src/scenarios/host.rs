//! The host as the other end: tools run between programs with our provider on a node and a guest.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::sides::words;
use crate::machine::Guest;
use crate::server::Server;
use crate::{Outcome, bound_to_us, built, failed};

/// Time limit for a program in seconds: longer than a kernel repeats its DREQ when the DREP of a program that has ended is lost.
pub const LIMIT: u64 = 110;
/// Address of the guest.
pub const GUEST: &str = "10.7.0.2";
/// Address of the device on the host.
pub const HOST: &str = "10.7.0.1";

/// A device of a node, used by programs of the host, and a device of a guest.
pub struct Ends {
    node: PathBuf,
    ours: &'static str,
    theirs: &'static str,
    /// Index of the GID with the address [`GUEST`].
    gid: u32,
}

impl Ends {
    /// Gives device `ours` of the node of `server` its address. The guest's device `theirs` has one already.
    pub fn new(server: &Server, ours: &'static str, theirs: &'static str, gid: u32) -> Outcome<Self> {
        let node = server.node();
        let mut address = Command::new(built().join("ironverbs"));
        address.args(["node", "address", "--node"]).arg(&node).args([ours, &format!("{HOST}/24")]);
        host("ironverbs node address", &mut address)?;
        Ok(Self { node, ours, theirs, gid })
    }

    fn start(&self, command: &str, port: u16, peer: &str) -> Outcome<Child> {
        on_node(&self.node, &format!("{} {peer}", words(command, self.ours, Some(1), port)))
    }

    /// Runs a tool with its server in the guest and its client on the host; QEMU forwards the client's TCP connection to `port`.
    pub fn host_asks(&self, guest: &mut Guest, command: &str, port: u16) -> Outcome {
        let serving = guest.start_script(LIMIT, &words(command, self.theirs, Some(self.gid), port))?;
        guest.run(30, &format!("until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.05; done"))?;
        let client = output_of(command, self.start(command, port, "127.0.0.1")?);
        let served = guest.wait(&serving)?;
        match client {
            Ok(said) => sound(command, &said)?,
            Err(error) => {
                return failed(format!("{error}\n--- the server: status {}\n{}", served.status, served.text));
            }
        }
        match served.status {
            0 => sound(command, &served.text),
            // perftest's last exchange over TCP may find the forwarded connection closed.
            _ if command.starts_with("ib_") && served.text.contains("Couldn't read remote address") => Ok(()),
            status => failed(format!("{command}: the server ended with {status}: {}", served.text)),
        }
    }

    /// Runs a tool with its server on the host and its client in the guest.
    pub fn guest_asks(&self, guest: &mut Guest, command: &str) -> Outcome {
        let port = free_ports(1)?[0];
        let serving = self.start(command, port, "")?;
        wait_for_listener(port)?;
        let client = format!("{} 10.0.2.2", words(command, self.theirs, Some(self.gid), port));
        let client = guest.run(LIMIT, &client);
        match (client, output_of(command, serving)) {
            (Ok(client), Ok(served)) => sound(command, &client).and_then(|()| sound(command, &served)),
            (Err(error), served) => failed(format!("{error}\n--- the host's side: {served:?}")),
            (Ok(_), Err(error)) => Err(error),
        }
    }
}

/// QEMU arguments for a network card at PCI address 8 that connects to the host, and the `count` ports by which the host reaches tools of
/// the guest. The guest's address is 10.0.2.15.
pub fn way_to_host(count: usize) -> Outcome<(Vec<u16>, [String; 4])> {
    let ports = free_ports(count)?;
    let forwards: String = ports.iter().map(|p| format!(",hostfwd=tcp:127.0.0.1:{p}-:{p}")).collect();
    let words = [
        "-netdev".into(),
        format!("user,id=world,ipv6=off{forwards}"),
        "-device".into(),
        "virtio-net-pci,netdev=world,addr=0x8".into(),
    ];
    Ok((ports, words))
}

/// Finds TCP ports of the host that are not in use.
fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let held: Result<Vec<TcpListener>, _> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let ports: Result<Vec<u16>, _> = held?.iter().map(|l| l.local_addr().map(|a| a.port())).collect();
    Ok(ports?)
}

/// Checks that a tool that exited with 0 printed no error.
fn sound(tool: &str, said: &str) -> Outcome {
    let wrong = ["invalid data", "Failed status", "Couldn't"].iter().any(|word| said.contains(word));
    if wrong { failed(format!("{tool}: {said}")) } else { Ok(()) }
}

/// Starts a program of the host on a node; it ends by itself.
pub fn on_node(node: &Path, words: &str) -> Outcome<Child> {
    let mut command = bound_to_us("timeout");
    command.arg(LIMIT.to_string()).arg(built().join("ironverbs")).args(["run", "--node"]).arg(node).arg("--");
    piped(command.args(words.split_whitespace()))
}

/// Runs a command on the host; it must exit with 0. Returns its output.
pub fn host(what: &str, command: &mut Command) -> Outcome<String> {
    output_of(what, piped(command)?)
}

fn piped(command: &mut Command) -> Outcome<Child> {
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Waits for a program of the host, which must exit with 0. Returns its output.
pub fn output_of(what: &str, child: Child) -> Outcome<String> {
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if status.success() {
        Ok(said)
    } else {
        failed(format!("{what} on the host ended with {status}\n{said}"))
    }
}

/// Waits until a process on the host listens on a TCP port, without connecting: a tool would take the connection for its peer.
fn wait_for_listener(port: u16) -> Outcome {
    let listens = |file: &str| {
        let table = std::fs::read_to_string(file).unwrap_or_default();
        let local = format!(":{port:04X}");
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() > 3 && words[1].ends_with(&local) && words[3] == "0A"
        })
    };
    let listened = || Ok(listens("/proc/net/tcp") || listens("/proc/net/tcp6"));
    wait_for(&format!("a listener on port {port}"), 60, listened)
}

/// Waits until `is_there`.
pub fn wait_for(what: &str, seconds: u64, mut is_there: impl FnMut() -> Outcome<bool>) -> Outcome {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !is_there()? {
        if Instant::now() > until {
            return failed(format!("expected {what} within {seconds} s"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
