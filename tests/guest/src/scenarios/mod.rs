//! What guests must show, each scenario from boot to power-off.

mod boot;
mod log;
mod sriov;

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
    let scenario = |name, about, run| Scenario { name, about, run };
    vec![
        scenario("boot", "both kernels boot, take commands and power off", boot::run),
        scenario("sriov", "the generic PF and VF sequence on QEMU's igb", sriov::run),
    ]
}
