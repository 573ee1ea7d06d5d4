//! Connections by the stock librdmacm between a program of the host, with our connection manager in the process, and one of a guest, with
//! the kernel's; each as client and as server.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::host::{GUEST, HOST, LIMIT, on_node, output_of};
use super::wire::Wire;
use super::with_host;
use crate::images::{Images, KERNELS};
use crate::machine::Guest;
use crate::{Outcome, failed, log};

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
    let serving = on_node(node, server)?;
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
    match (asked, output_of(server, serving)) {
        (Ok(_), Ok(_)) => {
            println!("    {:5.1} s  guest: {client}", begin.elapsed().as_secs_f32());
            Ok(())
        }
        (Ok(_), Err(error)) => Err(error),
        (Err(error), served) => failed(format!("{client} in the guest: {error}\n--- the host: {served:?}")),
    }
}

fn guest_serves(node: &Path, guest: &mut Guest, server: &str, client: &str) -> Outcome {
    let begin = Instant::now();
    let serving = guest.start_script(LIMIT, &format!("timeout {LIMIT} {server}"))?;
    let mut asked = failed("not asked");
    for _ in 0..TRIES {
        asked = output_of(client, on_node(node, client)?);
        if asked.is_ok() || begin.elapsed() > Duration::from_secs(LIMIT) {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let served = guest.wait(&serving)?;
    if asked.is_ok() && served.status == 0 {
        println!("    {:5.1} s  host:  {client}", begin.elapsed().as_secs_f32());
        return Ok(());
    }
    failed(format!("{asked:?}\n--- the guest's {server}: {} {}", served.status, served.text))
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
    let (mut server, mut guest, ..) = with_host::boot(images, "connect")?;
    between(&server.node(), &mut guest, &PROGRAMS)?;
    server.end([guest])
}
