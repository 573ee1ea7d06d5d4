//! rxe in a guest and our provider on the host, with raw Ethernet frames between them.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::host::{Ends, GUEST, HOST, host, way_to_host};
use super::scratch::{Scratch, scratch};
use crate::images::{Images, KERNELS};
use crate::machine::{Guest, Plan};
use crate::server::{self, Server};
use crate::{Outcome, bound_to_us, built, failed, log};

/// Tools, run each way; a slow guest must be able to keep up with the outstanding requests.
const TOOLS: [&str; 7] = [
    "ibv_rc_pingpong -c -n 200",
    // Only on a good wire, because unreliable services do not retransmit.
    "ibv_uc_pingpong -c -n 200",
    "ibv_ud_pingpong -c -n 200 -s 1000",
    "ibv_rc_pingpong -c -s 65536 -n 20",
    "ib_send_bw -F -u 17 -t 8 -n 100 -s 16384",
    "ib_write_bw -F -u 17 -t 8 -n 100 -s 16384",
    "ib_read_bw -F -u 17 -o 8 -t 8 -n 100 -s 16384",
];

/// The test bed: a node connected to a guest's network card.
pub(super) struct Wire {
    /// The guest, with [`GUEST`] on `rxe0`.
    pub guest: Guest,
    /// The server of the node, where device `iron1` has [`HOST`].
    pub server: Server,
    ends: Ends,
    ports: Vec<u16>,
    scratch: Scratch,
}

impl Wire {
    /// Boots the guest; `faults` are the link's.
    pub fn boot(images: &Images, name: &str, kernel: &str, faults: Option<&str>) -> Outcome<Self> {
        let scratch = scratch(name)?;
        let (near, far) = (scratch.join("near"), scratch.join("far"));
        let mut arguments = vec!["--link".into(), format!("dgram:{},{}", near.display(), far.display())];
        if let Some(faults) = faults {
            arguments.extend(["--link-faults".into(), faults.into()]);
        }
        let server =
            Server::start(&server::Plan { arguments, more: vec![near.clone()], ..Default::default() })?;
        // The tools' exchange over TCP uses QEMU's own network.
        let (ports, world) = way_to_host(TOOLS.len())?;
        let wire = format!(
            "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            far.display(),
            near.display()
        );
        let plan = Plan::new(name).kernel(kernel).qemu(world).qemu([
            "-netdev",
            &wire,
            "-device",
            "virtio-net-pci,netdev=wire,addr=0x9,mac=52:54:00:00:07:02",
        ]);
        let mut guest = Guest::boot(images, plan)?;
        let gid = guest.run(
            60,
            &format!(
                r#"modprobe -a virtio_net rdma_rxe ib_uverbs
until [ -d /sys/bus/pci/devices/0000:00:09.0/virtio*/net ]; do sleep 0.05; done
ip link set $(ls /sys/bus/pci/devices/0000:00:08.0/virtio*/net) name out
ip link set $(ls /sys/bus/pci/devices/0000:00:09.0/virtio*/net) name wire
ip addr add 10.0.2.15/24 dev out && ip link set out up
ip addr add {GUEST}/24 dev wire && ip link set wire up && rdma link add rxe0 type rxe netdev wire || exit 1
for try in $(seq 100); do
    for file in /sys/class/infiniband/rxe0/ports/1/gids/*; do grep -q 'ffff:0a07:0002' $file && echo ${{file##*/}} && exit 0; done
    sleep 0.1
done
exit 1"#
            ),
        )?;
        let Ok(gid) = gid.trim().parse() else {
            return failed(format!("expected a GID's index, found {gid:?}"));
        };
        let ends = Ends::new(&server, "iron1", "rxe0", gid)?;
        Ok(Self { guest, server, ends, ports, scratch })
    }
}

/// An `ironverbs node` process on a node's wire; it runs until told to end.
pub(super) struct Beside(Child);

impl Beside {
    /// Captures the frames of the adapter in `node` to `file`.
    pub fn capture(node: &Path, file: &Path) -> Outcome<Self> {
        Self::start("capture", node, file)
    }

    /// Applies the fault plan in `file` to them.
    pub fn faults(node: &Path, file: &Path) -> Outcome<Self> {
        Self::start("faults", node, file)
    }

    fn start(what: &str, node: &Path, file: &Path) -> Outcome<Self> {
        let mut beside = bound_to_us(built().join("ironverbs"));
        beside.args(["node", what, "--node"]).arg(node).arg(file);
        Ok(Self(beside.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// Ends the process; its output file is then complete.
    pub fn end(mut self) {
        let _ = Command::new("kill").args(["-INT", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// Returns the packets of a capture that match `filter` in `tshark`, one per line.
pub(super) fn packets(images: &Images, capture: &Path, filter: &str) -> Outcome<Vec<String>> {
    let mut command = Command::new(images.tshark());
    command.args(["-n", "-2", "-R", filter, "-r"]).arg(capture);
    let said = host("tshark", &mut command)?;
    Ok(said.lines().filter(|line| line.contains('→') || line.contains("->")).map(str::to_owned).collect())
}

/// Returns the last hundred frames of a capture, to find out why two ends wait for each other.
fn last_frames(images: &Images, capture: &Path) -> String {
    match packets(images, capture, "frame") {
        Ok(frames) => frames[frames.len().saturating_sub(100)..].join("\n"),
        Err(error) => error.to_string(),
    }
}

/// Returns true if a capture ends with rxe in the middle of a message that we have acknowledged completely. That happens when our
/// acknowledgement was lost and rxe retransmits: the next acknowledgement, for the first of these packets, covers all of them, as IBTA
/// 9.7.5.1.2 requires. rxe then completes the request before the last packets are sent, and its queue pair never sends again.
fn rxe_forgot_the_rest(images: &Images, capture: &Path) -> Outcome<bool> {
    let mut command = Command::new(images.tshark());
    command.args(["-n", "-Y", "infiniband.bth.opcode <= 0x1f", "-T", "fields", "-r"]).arg(capture);
    for field in ["ip.src", "infiniband.bth.opcode", "infiniband.bth.psn"] {
        command.args(["-e", field]);
    }
    let said = host("tshark", &mut command)?;
    let frames: Vec<(&str, u8, u32)> = said.lines().filter_map(frame_of).collect();
    // Opcodes of reliable connections (IBTA 9.2.1).
    let is_acknowledgement = |opcode| opcode == 0x11;
    let is_first_or_middle = |opcode| matches!(opcode, 0x00 | 0x01 | 0x06 | 0x07);
    let last = |by: &str| frames.iter().rev().find(|(from, ..)| *from == by);
    let (Some((_, ours, acknowledged)), Some((_, theirs, asked))) = (last(HOST), last(GUEST)) else {
        return Ok(false);
    };
    // Sequence numbers have 24 bits.
    let ahead = acknowledged.wrapping_sub(*asked) & 0xff_ffff;
    Ok(is_acknowledgement(*ours) && is_first_or_middle(*theirs) && (1..0x80_0000).contains(&ahead))
}

/// Parses a line of `tshark`: sender, opcode and sequence number of a frame.
fn frame_of(line: &str) -> Option<(&str, u8, u32)> {
    let mut words = line.split('\t');
    let (from, opcode, psn) = (words.next()?, words.next()?, words.next()?);
    Some((from, opcode.parse().ok()?, psn.parse().ok()?))
}

/// Counts InfiniBand packets in a capture, and lists those that `tshark` reports as malformed.
fn dissect(images: &Images, capture: &Path) -> Outcome<(usize, String)> {
    let wrong = "_ws.malformed || _ws.short || _ws.expert.severity == \"Error\"";
    Ok((packets(images, capture, "infiniband")?.len(), packets(images, capture, wrong)?.join("\n")))
}

/// Checks a capture against our checker of the transport's rules, which must find no violation; a `lossy` capture lacks some frames.
fn rules(capture: &Path, lossy: bool) -> Outcome<String> {
    let mut command = Command::new(built().join("ironverbs"));
    command.arg("check").args(lossy.then_some("--lossy")).arg(capture);
    host("ironverbs check", &mut command)
}

/// Runs the tools both ways. On a lossy wire it starts over if rxe stopped, which happens in one run of ten.
fn run(images: &Images, name: &str, kernel: &str, faults: Option<&str>) -> Outcome {
    let tries = if faults.is_some() { 3 } else { 1 };
    for _ in 1..tries {
        if !once(images, name, kernel, faults, true)? {
            return Ok(());
        }
        println!("    rxe stopped in the middle of a message that was acknowledged; once more");
    }
    once(images, name, kernel, faults, false).map(|_| ())
}

/// Runs the tools once. Returns true if rxe stopped, which is an error unless `excused`.
fn once(images: &Images, name: &str, kernel: &str, faults: Option<&str>, excused: bool) -> Outcome<bool> {
    let mut wire = Wire::boot(images, name, kernel, faults)?;
    let capture = wire.scratch.join("capture.pcap");
    let watcher = Beside::capture(&wire.server.node(), &capture)?;
    let done = tools(&mut wire, faults.is_none());
    watcher.end();
    if let Err(error) = done {
        if excused && rxe_forgot_the_rest(images, &capture)? {
            return Ok(true);
        }
        return failed(format!("{error}\n--- the last frames:\n{}", last_frames(images, &capture)));
    }
    let (packets, wrong) = dissect(images, &capture)?;
    if packets < 1000 || !wrong.is_empty() {
        let first: Vec<&str> = wrong.lines().take(20).collect();
        return failed(format!(
            "expected a thousand packets and none wrong, found {packets}; wrong:\n{}",
            first.join("\n")
        ));
    }
    println!("    {packets} packets, none malformed");
    println!("    {}", rules(&capture, faults.is_some())?.trim_end());
    log::clean(&mut wire.guest)?;
    wire.server.check()?;
    wire.guest.power_off()?;
    Ok(false)
}

fn tools(wire: &mut Wire, good: bool) -> Outcome {
    for (tool, port) in TOOLS.into_iter().zip(&wire.ports) {
        if !good && (tool.contains("_uc_") || tool.contains("_ud_")) {
            continue;
        }
        let tries = if good || !tool.starts_with("ibv_rc_pingpong") { 1 } else { 3 };
        answered(tries, || wire.ends.host_asks(&mut wire.guest, tool, *port))?;
        answered(tries, || wire.ends.guest_asks(&mut wire.guest, tool))?;
    }
    Ok(())
}

/// `ibv_rc_pingpong` has no final handshake: a side exits when it has received everything, and if its last acknowledgement is lost, it
/// cannot be repeated. The peer then runs out of retries, as IBTA 9.7.5.1.3 requires; such a run is repeated.
fn answered(tries: usize, mut run: impl FnMut() -> Outcome) -> Outcome {
    let unanswered = |ran: &Outcome| {
        ran.as_ref().is_err_and(|e| e.to_string().contains("transport retry counter exceeded"))
    };
    let mut ran = run();
    for _ in 1..tries {
        if unanswered(&ran) {
            ran = run();
        }
    }
    ran
}

/// On a good wire, with the rxe of both kernels.
pub fn plain(images: &Images) -> Outcome {
    KERNELS.iter().try_for_each(|kernel| run(images, "wire", kernel, None))
}

/// One frame in a hundred is lost, both ways.
pub fn with_drops(images: &Images) -> Outcome {
    run(images, "drops", KERNELS[1], Some("drop=1%,seed=7"))
}
