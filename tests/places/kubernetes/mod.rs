//! Clusters of Linux nodes (`scripts/kubernetes.sh`) with programs by others, unmodified: who gives pods their VFs, and what pods do with them.
//!
//! `make test-kubernetes` runs them, for each takes minutes. They need root, and are skipped where programs are missing.

mod chart;
mod cluster;
mod host;
mod infiniband;
mod operator;
mod page;
mod programs;
mod rails;
mod shared;
mod spiderpool;
mod sriov;
