//! The stock driver in a guest, and programs with our provider on the host, on one node.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::{Outcome, log};

use super::host::{GUEST, Host, way_to_host};

/// The stock driver in a guest, and programs of the host on another function of the same node: the guest's kernel resolves the address of a
/// device that no kernel drives.
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
