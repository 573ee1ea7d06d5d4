//! What guests must show, each scenario from boot to power-off.

use crate::Outcome;
use crate::images::Images;

/// One thing to show.
pub struct Scenario {
    /// Name to call it by.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Shows it.
    pub run: fn(&Images) -> Outcome,
}

/// All scenarios, the quick ones first.
pub fn all() -> Vec<Scenario> {
    vec![Scenario { name: "boot", about: "both kernels boot, take commands and power off", run: boot }]
}

fn boot(images: &Images) -> Outcome {
    use crate::machine::{Guest, Plan};
    let plans = crate::images::KERNELS
        .map(|kernel| Plan::new(&format!("k{}", kernel.replace('.', "-"))).kernel(kernel));
    for mut guest in Guest::boot_all(images, plans.to_vec())? {
        let said =
            guest.run(10, "uname -r; which ibv_rc_pingpong ib_send_bw rping ethtool rdma socat python3")?;
        println!("    {}: {}", guest.name(), said.lines().next().unwrap_or_default());
        guest.power_off()?;
    }
    Ok(())
}
