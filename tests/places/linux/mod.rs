//! Tests of `ironverbs linux`, with the stock mlx5 driver, iproute2, perftest and librdmacm on a separate Linux kernel.
//!
//! They are skipped if no kernel was built (`scripts/linux-kernel.sh build`), except those that need none.

mod adapters;
mod cni;
mod infiniband;
mod sriov;
mod storage;
mod streams;
mod tools;
mod traffic;
mod two_nodes;
mod vf_settings;

pub use infiniband::PARTITIONS;
