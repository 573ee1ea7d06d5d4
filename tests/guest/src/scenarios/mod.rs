//! The scenarios that guests must pass, each from boot to power-off.

mod blueflame;
mod boot;
mod bringup;
mod congestion;
mod connect;
mod customers;
mod fabric;
mod figures;
mod garbage;
mod host;
mod launcher;
mod load;
mod mlx5;
mod netdev;
mod pairs;
mod rxe;
mod scratch;
mod sides;
mod sriov;
mod stream;
mod verbs;
mod vfio;
mod wire;
mod with_host;

use crate::Outcome;
use crate::images::Images;

/// A scenario.
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// The behaviour that it tests.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&Images) -> Outcome,
    /// Runs only if named explicitly.
    pub named: bool,
}

/// Returns all scenarios, the quick ones first.
pub fn all() -> Vec<Scenario> {
    let scenario = |name, about, run| Scenario { name, about, run, named: false };
    let named = |name, about, run| Scenario { named: true, ..scenario(name, about, run) };
    vec![
        scenario("boot", "both kernels boot, take commands and power off", boot::run),
        scenario("launcher", "ironverbs run beside the kernel's own RDMA devices", launcher::run),
        scenario("rxe-rxe", "two guests, rxe between them: the programs and the bed", rxe::among_themselves),
        scenario(
            "mlx5-host",
            "one node: the stock driver in a guest, ours on the host",
            with_host::stock_driver,
        ),
        scenario("sriov", "the generic PF and VF sequence on QEMU's igb", sriov::run),
        scenario("load-eth", "mlx5_core and mlx5_ib come and go, Ethernet, 6.1 and 6.12", load::ethernet),
        scenario("load-ib", "the same for InfiniBand", load::infiniband),
        scenario("one-eth", "one guest, two functions: verbs, rdma_cm, congestion", pairs::one_ethernet),
        scenario("one-ib", "one guest, two functions, InfiniBand: verbs", pairs::one_infiniband),
        scenario("two-eth", "two guests: verbs, rdma_cm, rdma statistic", pairs::two_ethernet),
        scenario("two-net", "two guests: ping, TCP, steering, link, ethtool", pairs::two_netdev),
        scenario("two-ib", "two guests, InfiniBand: verbs, IPoIB, rdma_cm", pairs::two_infiniband),
        scenario("stream", "what the stock driver sends of a VF is what tests/streams/ says", stream::stock),
        scenario("figures", "commands and perftest in the guest, beside rxe", figures::run),
        scenario("garbage", "a guest that writes garbage leaves others alone", garbage::run),
        scenario("wire", "rxe in the guest, our provider on the host", wire::plain),
        scenario("wire-drops", "the same while 1 % of the frames are lost", wire::with_drops),
        scenario("connect-rxe", "rdma_cm: ours on the host, the kernel's on rxe in the guest", connect::rxe),
        scenario("connect-drops", "the same while 10 % of the frames are lost", connect::with_drops),
        scenario("connect-mlx5", "the same, the guest on the stock driver and one node", connect::mlx5),
        scenario("vfio-pyverbs", "rdma-core's own VFIO driver and test", vfio::pyverbs),
        scenario("vfio-provider", "our driver on VFIO, the stock driver in another guest", vfio::provider),
        scenario("vfio-example", "an example of the crate for Rust programs on two VFs", vfio::example),
        named("vfio-customers", "UCX, libfabric, Open MPI: our driver on two VFs", customers::on_vfio),
        named("vfio-blueflame", "our driver on two VFs: BlueFlame on one of them", blueflame::on_vfio),
        scenario("bringup", "ironverbs bringup passes, and finds out models that lie", bringup::run),
    ]
}
