//! Clusters of Linux nodes (`scripts/kubernetes.sh`) with unmodified third-party programs: the plugins that assign VFs to pods, and the
//! traffic of pods.
//!
//! `make test-kubernetes` runs these tests, each of which takes minutes. They need root, and are skipped where programs are missing.

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
