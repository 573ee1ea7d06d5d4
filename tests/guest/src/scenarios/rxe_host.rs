//! Linux's rdma_rxe in a guest, and programs with our provider on the host, joined by raw frames on a datagram socket: neither
//! knows the other, and each checks what comes from it, to the ICRC.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::images::{Images, KERNELS};
use crate::machine::{Guest, Plan};
use crate::{Outcome, Trouble, bound_to_us, built, failed, log};

/// What each tool may take, seconds.
const LIMIT: u64 = 90;
/// The guest's address, and the device's on the host.
const GUEST: &str = "10.7.0.2";
const HOST: &str = "10.7.0.1";

/// Tools, each run twice: the client on the host, the client in the guest. Of outstanding READs perftest takes the peer's
/// number for its own, and the two differ.
const TOOLS: [(&str, &str); 5] = [
    ("ibv_rc_pingpong", "-g 1 -c -n 100"),
    ("ib_send_bw", "-x 1 -F -s 4096 -n 200 -u 18"),
    ("ib_write_bw", "-x 1 -F -s 65536 -n 30 -u 18"),
    ("ib_read_bw", "-x 1 -F -o 16 -s 65536 -n 30 -u 18"),
    ("ib_atomic_lat", "-x 1 -F -o 16 -n 50 -u 18"),
];

/// The node on the host, with the process that holds its uplink.
struct Host {
    dir: super::Scratch,
    node: PathBuf,
    link: Option<Child>,
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut link) = self.link.take() {
            let _ = link.kill();
            let _ = link.wait();
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

/// The end of a process that was told to end, or does by itself.
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
    fn new() -> Outcome<Self> {
        let dir = super::scratch("rxe-host")?;
        let node = PathBuf::from(format!("/dev/shm/ivg-{}-rxe", std::process::id()));
        let host = Self { dir, node, link: None };
        let mut create = ironverbs(&["node", "create"], &host.node);
        create.args(["--node-id", "1", "--vfs", "1"]);
        ends_well(create)?;
        let mut address = ironverbs(&["node", "address"], &host.node);
        address.args(["iron1", &format!("{HOST}/24")]);
        ends_well(address)?;
        Ok(host)
    }

    /// Joins the node to the guest's wire.
    fn join(&mut self, faults: &str) -> Outcome {
        let mut link = ironverbs(&["serve"], &self.node);
        let [ours, guests] = self.sockets();
        link.args(["--link", &format!("dgram:{},{}", ours.display(), guests.display())]);
        if !faults.is_empty() {
            link.args(["--link-faults", faults]);
        }
        self.link = Some(link.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        let until = Instant::now() + Duration::from_secs(20);
        while !ours.exists() {
            if Instant::now() > until {
                return failed("expected the link's socket within 20 s");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends that; what the link says of itself.
    fn part(&mut self) -> Outcome<String> {
        match self.link.take() {
            Some(link) => interrupt(link, "the link"),
            None => failed("no link"),
        }
    }

    fn sockets(&self) -> [PathBuf; 2] {
        [self.dir.join("host"), self.dir.join("guest")]
    }

    /// Starts a tool on the host.
    fn start(&self, words: &str) -> Outcome<Child> {
        let mut command = ironverbs(&["run"], &self.node);
        command.arg("--").args(words.split_whitespace());
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }
}

/// A TCP port of the host that nobody listens on.
fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// That what a tool said is not an error it ended well with.
fn sound(tool: &str, said: &str) -> Outcome {
    let wrong = ["invalid data", "Failed status", "Couldn't"].iter().any(|word| said.contains(word));
    if wrong { failed(format!("{tool}: {said}")) } else { Ok(()) }
}

/// The client on the host; QEMU brings its TCP connection to the guest.
fn host_asks(host: &Host, guest: &mut Guest, port: u16, tool: &str, options: &str) -> Outcome {
    let serving = guest.start_script(LIMIT, &format!("{tool} -d rxe0 {options} -p {port}"))?;
    guest.run(30, &format!("until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.05; done"))?;
    let client = ended(host.start(&format!("{tool} -d iron1 {options} -p {port} 127.0.0.1"))?, tool);
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

/// The client in the guest.
fn guest_asks(host: &Host, guest: &mut Guest, tool: &str, options: &str) -> Outcome {
    let port = free_port()?;
    let server = host.start(&format!("{tool} -d iron1 {options} -p {port}"))?;
    let listens = format!(":{port:04X} ");
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| fs::read_to_string(t).unwrap_or_default());
        if tables.concat().lines().any(|line| line.contains(&listens) && line.contains(" 0A ")) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = guest.run(LIMIT, &format!("{tool} -d rxe0 {options} -p {port} 10.0.2.2"));
    let server = ended(server, tool);
    match (client, server) {
        (Ok(client), Ok(server)) => sound(tool, &client).and_then(|()| sound(tool, &server)),
        (Err(error), server) => failed(format!("{error}\n--- the server: {server:?}")),
        (Ok(_), Err(error)) => Err(error),
    }
}

/// What tshark finds wrong in a capture.
fn dissect(images: &Images, capture: &Path) -> Outcome {
    let output = Command::new(images.tshark())
        .arg("-r")
        .arg(capture)
        // It takes payloads for RPC by what they happen to hold.
        .args(["--disable-protocol", "rpcordma"])
        .args(["-Y", "_ws.malformed || _ws.expert.severity == error"])
        .stdin(Stdio::null())
        .output()?;
    let text = said(&output);
    if !output.status.success() {
        return failed(format!("tshark: {text}"));
    }
    let found = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if found.is_empty() { Ok(()) } else { failed(format!("tshark found\n{found}")) }
}

fn judge(images: &Images, kernel: &str) -> Outcome {
    let mut host = Host::new()?;
    let [ours, guests] = host.sockets();
    let ports = TOOLS.iter().map(|_| free_port()).collect::<Outcome<Vec<u16>>>()?;
    let forwards: String = ports.iter().map(|p| format!(",hostfwd=tcp:127.0.0.1:{p}-:{p}")).collect();
    let wire = format!(
        "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
        guests.display(),
        ours.display()
    );
    let plan = Plan::new("rxe").kernel(kernel).qemu([
        "-netdev".into(),
        wire,
        "-device".into(),
        "virtio-net-pci,netdev=wire,addr=0x8,mac=52:54:00:00:07:02".into(),
        "-netdev".into(),
        format!("user,id=world{forwards}"),
        "-device".into(),
        "virtio-net-pci,netdev=world,addr=0x9".into(),
    ]);
    let mut guest = Guest::boot(images, plan)?;
    guest.run(
        60,
        &format!(
            "modprobe -a virtio_net rdma_rxe ib_uverbs
for card in '08 {GUEST}/24' '09 10.0.2.15/24'; do
    set -- $card
    until [ -d /sys/bus/pci/devices/0000:00:$1.0/virtio*/net ]; do sleep 0.05; done
    dev=$(ls /sys/bus/pci/devices/0000:00:$1.0/virtio*/net)
    ip addr add $2 dev $dev && ip link set $dev up
done
dev=$(ls /sys/bus/pci/devices/0000:00:08.0/virtio*/net)
rdma link add rxe0 type rxe netdev $dev
until ibv_devinfo -v -d rxe0 | grep -q ::ffff:{GUEST}; do sleep 0.1; done"
        ),
    )?;
    for faults in ["", "drop=1%,seed=5"] {
        let file = host.dir.join("capture");
        host.join(faults)?;
        let mut capture = ironverbs(&["node", "capture"], &host.node);
        let capture = capture.arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        for ((tool, options), port) in TOOLS.iter().zip(&ports) {
            let shown = host_asks(&host, &mut guest, *port, tool, options)
                .and_then(|()| guest_asks(&host, &mut guest, tool, options));
            named(shown, faults)?;
        }
        let captured = interrupt(capture, "the capture")?;
        if !captured.contains(" 0 lost") {
            return failed(format!("expected a capture of all frames, found {captured}"));
        }
        dissect(images, &file)?;
        let said = host.part()?;
        if said.contains("faults 0") != faults.is_empty() {
            return failed(format!("expected '{faults}' to befall frames: {said}"));
        }
    }
    log::clean(&mut guest)?;
    guest.power_off()
}

/// A failure that says under what.
fn named(shown: Outcome, what: &str) -> Outcome {
    shown.map_err(|trouble| match trouble {
        Trouble::Failed(words) if !what.is_empty() => Trouble::Failed(format!("{what}: {words}")),
        other => other,
    })
}

/// Both kernels' rxe, with a link that carries every frame and one that loses one in a hundred.
pub fn run(images: &Images) -> Outcome {
    KERNELS.iter().try_for_each(|kernel| named(judge(images, kernel), kernel))
}
