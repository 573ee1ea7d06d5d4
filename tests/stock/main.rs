//! Debian's programs and libraries, and C programs on the stock libibverbs, on a node.

mod c_programs;
mod containers;
mod customers;
mod datagrams;
mod matrix;
mod over_vfio_user;
mod pyverbs;
mod rdma_cm;
mod shared;
mod time;
mod tools;
mod trust;
