//! The stock driver at both ends.

use crate::Outcome;
use crate::images::Images;

use super::mlx5::{Pair, Place};
use super::{congestion, fabric, netdev, verbs};

const NEW: [&str; 2] = ["6.12", "6.12"];
const BOTH: [&str; 2] = ["6.12", "6.1"];

/// One guest, two functions, Ethernet.
pub fn one_ethernet(images: &Images) -> Outcome {
    let mut pair = Pair::boot(images, "eth", Place::OneGuest, false, NEW)?;
    verbs::codes(&mut pair.bench)?;
    verbs::data_moves(&mut pair.bench)?;
    verbs::rping(&mut pair.bench, 1000)?;
    congestion::control(&mut pair)?;
    pair.finish()
}

/// One guest, two functions, InfiniBand.
pub fn one_infiniband(images: &Images) -> Outcome {
    let mut pair = Pair::boot(images, "ib", Place::OneGuest, true, NEW)?;
    verbs::data_moves(&mut pair.bench)?;
    fabric::tools(&mut pair.bench)?;
    pair.finish()
}

/// Two guests of different kernels, Ethernet: verbs, then the net device.
pub fn two_ethernet(images: &Images) -> Outcome {
    let mut pair = Pair::boot(images, "eth", Place::TwoGuests, false, BOTH)?;
    verbs::data_moves(&mut pair.bench)?;
    verbs::counters(&mut pair.bench)?;
    verbs::rping(&mut pair.bench, 1000)?;
    pair.finish()
}

/// Two guests, Ethernet: the net device.
pub fn two_netdev(images: &Images) -> Outcome {
    let mut pair = Pair::boot(images, "net", Place::TwoGuests, false, BOTH)?;
    netdev::pings(&mut pair.bench)?;
    netdev::transfers(&mut pair.bench)?;
    netdev::steers(&mut pair.bench)?;
    netdev::link(&mut pair.bench)?;
    pair.finish()
}

/// Two guests of different kernels, InfiniBand: verbs, then IPoIB and rdma_cm on it.
pub fn two_infiniband(images: &Images) -> Outcome {
    let mut pair = Pair::boot(images, "ib", Place::TwoGuests, true, BOTH)?;
    verbs::data_moves(&mut pair.bench)?;
    netdev::ipoib(&mut pair.bench)?;
    verbs::rping(&mut pair.bench, 1000)?;
    pair.finish()
}
