//! Connections by the stock librdmacm between a program of the host, with our connection manager in the process, and one of a guest, with
//! the kernel's; each as client and as server.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::host::{GUEST, HOST, Host, way_to_host};
use super::wire::Wire;
use crate::images::{Images, KERNELS};
use crate::machine::{Guest, Plan};
use crate::{Outcome, bound_to_us, built, failed, log};

/// Time limit for a program in seconds: longer than a kernel repeats its DREQ when the DREP of a program that has ended is lost.
const LIMIT: u64 = 110;
/// Number of connection attempts, half a second apart: until the server listens, the client is rejected at once.
const TRIES: usize = 30;

/// Server and client; ME, PEER and PORT are placeholders.
const PROGRAMS: [(&str, &str); 3] = [
    ("rping -s -a ME -p PORT -C 100 -V", "rping -c -I ME -a PEER -p PORT -C 100 -V"),
    ("ucmatose -b ME -p PORT -C 20 -S 1000 -c 4", "ucmatose -b ME -s PEER -p PORT -C 20 -S 1000 -c 4"),
    ("udaddy -b ME -C 5 -S 512 -c 2", "udaddy -b ME -s PEER -C 5 -S 512 -c 2"),
];

/// For lossy wires: a program that waits for its DREP. If a program exits with its DREQ outstanding, as rping does, the kernel drops the
/// DREQ, and if that frame was lost, the server waits forever. Lost datagrams would go unnoticed.
const PATIENT: [(&str, &str); 1] =
    [("ucmatose -b ME -p PORT -C 10 -S 1000 -c 6", "ucmatose -b ME -s PEER -p PORT -C 10 -S 1000 -c 6")];

fn words(program: &str, me: &str, peer: &str, port: u16) -> String {
    program.replace("ME", me).replace("PEER", peer).replace("PORT", &port.to_string())
}

/// Starts a program of the host on the node; the program ends by itself.
fn on_host(node: &Path, words: &str) -> Outcome<Child> {
    let mut command = bound_to_us("timeout");
    command.arg(LIMIT.to_string()).arg(built().join("ironverbs")).args(["run", "--node"]).arg(node).arg("--");
    command.args(words.split_whitespace());
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Waits for its end. Returns its output, and true if it exited with 0.
fn end(child: Child) -> Outcome<(bool, String)> {
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    let said = format!("{}{}{status}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    Ok((status.success(), said))
}

/// Runs programs between the host and a guest with the address [`GUEST`], both ways.
fn between(node: &Path, guest: &mut Guest, programs: &[(&str, &str)]) -> Outcome {
    let mut port = 7600;
    for (server, client) in programs {
        port += 2;
        host_serves(node, guest, &words(server, HOST, GUEST, port), &words(client, GUEST, HOST, port))?;
        let port = port + 1;
        guest_serves(node, guest, &words(server, GUEST, HOST, port), &words(client, HOST, GUEST, port))?;
    }
    // Counts retransmissions of the kernel's messages and ours: none are required, but a slow guest may cause some.
    let sums = "cd /sys/class/infiniband/*/ports/1 || exit 1
for counter in cm_tx_msgs cm_tx_retries cm_rx_duplicates; do
    cat $counter/* | awk -v name=$counter '{ sum += $1 } END { printf \" %s %d\", name, sum }'
done";
    println!("   {}", guest.run(20, sums)?.trim_end());
    Ok(())
}

fn host_serves(node: &Path, guest: &mut Guest, server: &str, client: &str) -> Outcome {
    let begin = Instant::now();
    let serving = on_host(node, server)?;
    let asked = guest.run(
        LIMIT,
        &format!(
            "for try in $(seq {TRIES}); do timeout 80 {client} > /tmp/said 2>&1 && exit 0; sleep 0.5; done; cat /tmp/said; exit 1"
        ),
    );
    if asked.is_err() {
        // The server need not be waited for.
        let _ = Command::new("kill").args(["-TERM", &serving.id().to_string()]).status();
    }
    let (ok, said) = end(serving)?;
    match (asked, ok) {
        (Ok(_), true) => {
            println!("    {:5.1} s  guest: {client}", begin.elapsed().as_secs_f32());
            Ok(())
        }
        (Ok(_), false) => failed(format!("{server} on the host: {said}")),
        (Err(error), _) => failed(format!("{client} in the guest: {error}\n--- the host's {server}: {said}")),
    }
}

fn guest_serves(node: &Path, guest: &mut Guest, server: &str, client: &str) -> Outcome {
    let begin = Instant::now();
    let serving = guest.start_script(LIMIT, &format!("timeout {LIMIT} {server}"))?;
    let mut said = String::new();
    let mut ok = false;
    for _ in 0..TRIES {
        (ok, said) = end(on_host(node, client)?)?;
        if ok || begin.elapsed() > Duration::from_secs(LIMIT) {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let served = guest.wait(&serving)?;
    if ok && served.status == 0 {
        println!("    {:5.1} s  host:  {client}", begin.elapsed().as_secs_f32());
        return Ok(());
    }
    failed(format!(
        "{client} on the host: {said}\n--- the guest's {server}: {} {}",
        served.status, served.text
    ))
}

/// rxe in the guest, with its kernel's rdma_cm, over a wire.
pub fn rxe(images: &Images) -> Outcome {
    over_wire(images, "connect", None, &PROGRAMS)
}

/// The same on a wire that loses one frame in ten: both sides resend messages.
pub fn with_drops(images: &Images) -> Outcome {
    over_wire(images, "connect-drops", Some("drop=10%,seed=11"), &PATIENT)
}

fn over_wire(images: &Images, name: &str, faults: Option<&str>, programs: &[(&str, &str)]) -> Outcome {
    let mut wire = Wire::boot(images, name, KERNELS[0], faults)?;
    wire.guest.run(20, "modprobe -a rdma_cm rdma_ucm")?;
    between(&wire.server.node(), &mut wire.guest, programs)?;
    log::clean(&mut wire.guest)?;
    wire.server.check()?;
    wire.guest.power_off()
}

/// The stock mlx5 driver in the guest, on a function of the same node as the host's programs.
pub fn mlx5(images: &Images) -> Outcome {
    let mut host = Host::new("connect", "iron2", "mlx5_0")?;
    let socket = host.dir.join("iron1");
    host.serve(&["--plug", &format!("1={}", socket.display())], &socket)?;
    let (_, world) = way_to_host()?;
    let mut guest = Guest::boot(images, Plan::new("connect").plug(&socket).qemu(world))?;
    guest.run(
        90,
        &format!(
            "modprobe -a mlx5_core mlx5_ib ib_uverbs rdma_cm rdma_ucm
until [ -d /sys/bus/pci/devices/0000:00:10.0/net ]; do sleep 0.05; done
dev=$(ls /sys/bus/pci/devices/0000:00:10.0/net)
ip addr add {GUEST}/24 dev $dev && ip link set $dev up
until ibv_devinfo -v -d mlx5_0 | grep -q 'GID.*1]:.*::ffff:{GUEST}'; do sleep 0.1; done"
        ),
    )?;
    between(host.node(), &mut guest, &PROGRAMS)?;
    log::clean(&mut guest)?;
    guest.power_off()?;
    host.part().map(drop)
}
