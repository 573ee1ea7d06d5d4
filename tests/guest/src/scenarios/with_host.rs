//! Linux's rdma_rxe in a guest, and programs with our provider on the host, joined by raw frames on a datagram socket: neither
//! knows the other, and each checks what comes from it, to the ICRC. And the stock driver in a guest, on one node with
//! programs of the host.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::images::{Images, KERNELS};
use crate::machine::{Guest, Plan};
use crate::{Outcome, Trouble, failed, log};

use super::host::{GUEST, Host, said, way_to_host};

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
    let mut host = Host::new("rxe", "iron1", "rxe0")?;
    let [ours, guests] = [host.dir.join("host"), host.dir.join("guest")];
    let (ports, world) = way_to_host()?;
    let wire = format!(
        "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
        guests.display(),
        ours.display()
    );
    let device = "virtio-net-pci,netdev=wire,addr=0x8,mac=52:54:00:00:07:02".to_string();
    let plan = Plan::new("rxe").kernel(kernel).qemu(["-netdev".into(), wire, "-device".into(), device]);
    let mut guest = Guest::boot(images, plan.qemu(world))?;
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
until ibv_devinfo -v -d rxe0 | grep -q 'GID.*1]:.*::ffff:{GUEST}'; do sleep 0.1; done"
        ),
    )?;
    let link = format!("dgram:{},{}", ours.display(), guests.display());
    for faults in ["", "drop=1%,seed=5"] {
        let mut words = vec!["--link", &link];
        if !faults.is_empty() {
            words.extend(["--link-faults", faults]);
        }
        host.serve(&words, &ours)?;
        let file = host.dir.join("capture");
        named(host.captured(&file, || host.converse(&mut guest, &ports)), faults)?;
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

/// The stock driver in a guest, and programs of the host on another function of the same node: the guest's kernel finds the
/// address of a device that no kernel drives.
pub fn stock_driver(images: &Images) -> Outcome {
    let mut host = Host::new("mlx5", "iron2", "mlx5_0")?;
    let socket = host.dir.join("iron1");
    host.serve(&["--plug", &format!("1={}", socket.display())], &socket)?;
    let (ports, world) = way_to_host()?;
    let mut guest = Guest::boot(images, Plan::new("mlx5").plug(&socket).qemu(world))?;
    guest.run(
        90,
        &format!(
            "modprobe -a virtio_net mlx5_core mlx5_ib ib_uverbs
for card in '10.0 {GUEST}/24' '09.0/virtio* 10.0.2.15/24'; do
    set -- $card
    until [ -d /sys/bus/pci/devices/0000:00:$1/net ]; do sleep 0.05; done
    dev=$(ls /sys/bus/pci/devices/0000:00:$1/net)
    ip addr add $2 dev $dev && ip link set $dev up
done
until ibv_devinfo -v -d mlx5_0 | grep -q 'GID.*1]:.*::ffff:{GUEST}'; do sleep 0.1; done"
        ),
    )?;
    host.converse(&mut guest, &ports)?;
    log::clean(&mut guest)?;
    guest.power_off()?;
    host.part().map(drop)
}
