//! The stock driver in a guest, and programs with our provider on the host, on one node.

use crate::Outcome;
use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server::{self, Server};

use super::host::{Ends, GUEST, way_to_host};

/// Tools, each run twice: with the client on the host and with the client in the guest. perftest assumes that the peer supports as many
/// outstanding READs as itself, but the two differ.
const TOOLS: [&str; 5] = [
    "ibv_rc_pingpong -c -n 100",
    "ib_send_bw -F -s 4096 -n 200 -u 18",
    "ib_write_bw -F -s 65536 -n 30 -u 18",
    "ib_read_bw -F -o 16 -s 65536 -n 30 -u 18",
    "ib_atomic_lat -F -o 16 -n 50 -u 18",
];

/// Boots a guest whose stock driver has VF 1 of a node, with the address [`GUEST`]; programs of the host use VF 2. Also returns the ports
/// by which the host reaches tools of the guest.
pub(super) fn boot(images: &Images, name: &str) -> Outcome<(Server, Guest, Ends, Vec<u16>)> {
    let server = Server::start(&server::Plan { functions: vec![1], ..Default::default() })?;
    let ends = Ends::new(&server, "iron2", "mlx5_0", 1)?;
    let (ports, world) = way_to_host(TOOLS.len())?;
    let mut guest = Guest::boot(images, Plan::new(name).plug(server.socket(1)).qemu(world))?;
    guest.run(
        90,
        &format!(
            "modprobe -a virtio_net mlx5_core mlx5_ib ib_uverbs rdma_cm rdma_ucm
for card in '10.0 {GUEST}/24' '08.0/virtio* 10.0.2.15/24'; do
    set -- $card
    until [ -d /sys/bus/pci/devices/0000:00:$1/net ]; do sleep 0.05; done
    dev=$(ls /sys/bus/pci/devices/0000:00:$1/net)
    ip addr add $2 dev $dev && ip link set $dev up
done
until ibv_devinfo -v -d mlx5_0 | grep -q 'GID.*1]:.*::ffff:{GUEST}'; do sleep 0.1; done"
        ),
    )?;
    Ok((server, guest, ends, ports))
}

/// The stock driver in a guest, and programs of the host on another function of the same node: the guest's kernel resolves the address of a
/// device that no kernel drives.
pub fn stock_driver(images: &Images) -> Outcome {
    let (mut server, mut guest, ends, ports) = boot(images, "mlx5")?;
    for (tool, port) in TOOLS.into_iter().zip(ports) {
        ends.host_asks(&mut guest, tool, port)?;
        ends.guest_asks(&mut guest, tool)?;
    }
    server.end([guest])
}
