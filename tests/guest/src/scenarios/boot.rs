//! The test bed itself.

use crate::Outcome;
use crate::images::{Images, KERNELS};
use crate::machine::{Guest, Plan};

/// Boots a guest of each kernel, checks that it has the test programs, and powers it off.
pub fn run(images: &Images) -> Outcome {
    let plans = KERNELS.map(|kernel| Plan::new(&format!("k{}", kernel.replace('.', "-"))).kernel(kernel));
    for mut guest in Guest::boot_all(images, plans.to_vec())? {
        guest.run(10, "which ibv_rc_pingpong ib_send_bw rping ethtool rdma socat python3")?;
        println!("    {} boots", guest.release());
        guest.power_off()?;
    }
    Ok(())
}
