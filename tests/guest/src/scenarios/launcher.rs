//! `ironverbs run` on a kernel that has its own RDMA devices.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::{Outcome, log};

/// The kernel's device and ours in one view, each handled by its own driver.
const VIEW: &str = r#"
wrong() { echo "expected $1, found $2"; exit 1; }
run="/built/ironverbs run --node /dev/shm/node --vfs 1 --"
modprobe -a ib_uverbs rdma_rxe dummy || exit 1
ip link add dum0 type dummy && ip link set dum0 up && rdma link add rxe0 type rxe netdev dum0 || exit 1
has() { echo "$said" | grep -q "$1" || wrong "$1" "$said"; }
said=$($run rdma dev) || exit 1
has "^0: rxe0:"; has "^65536: iron0:"; has "^65537: iron1:"
said=$($run rdma link) || exit 1
has "link rxe0/1 state ACTIVE.* netdev dum0"; has "link iron1/1 state ACTIVE"
said=$($run rdma resource show qp) || exit 1
has "link rxe0/1 lqpn 1 type GSI"
said=$($run rdma statistic show link rxe0/1; $run rdma statistic show link iron1/1) || exit 1
has sent_pkts; has rx_write_requests
said=$($run ibv_devices) || exit 1
has rxe0; has iron0; has iron1
said=$($run ibv_devinfo -d iron1; $run ibv_devinfo -d rxe0) || exit 1
has 16.99; has PORT_ACTIVE
# What is the kernel's to change is changed; ours is not.
$run rdma dev set rxe0 name rxe7 || exit 1
! $run rdma dev set iron1 name x 2>/dev/null || wrong "a refusal" "a new name"
$run rdma link add rxe8 type rxe netdev lo || exit 1
said=$(rdma dev)
has rxe7; has rxe8
# Another user's programs may look and not change.
chmod 1777 /dev/shm
said=$(setpriv --reuid 4711 --regid 4711 --clear-groups /built/ironverbs run --node /dev/shm/other -- rdma dev) || exit 1
has rxe7; has iron1
! setpriv --reuid 4711 --regid 4711 --clear-groups /built/ironverbs run --node /dev/shm/other -- rdma dev set rxe7 name x 2>/dev/null \
    || wrong "a refusal" "a new name"
echo "kernel's and simulated devices in one view"
"#;

/// Runs programs on both devices in one view.
pub fn run(images: &Images) -> Outcome {
    let mut guest = Guest::boot(images, Plan::new("launcher"))?;
    let said = guest.run(120, VIEW)?;
    said.lines().for_each(|line| println!("    {line}"));
    log::clean_but(&mut guest, &["rxe", "dum0"])?;
    guest.power_off()
}
