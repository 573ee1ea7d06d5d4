//! `ironverbs linux`, judged by what runs there: the stock mlx5 driver, iproute2, perftest and librdmacm on a kernel of their own.
//!
//! Skipped where no kernel was made (`scripts/linux-kernel.sh build`), but for what needs none.

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
