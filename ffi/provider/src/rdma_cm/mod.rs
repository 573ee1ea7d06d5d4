//! The connection manager's device for the stock librdmacm: an in-process replacement of the kernel's rdma_ucm and rdma_cm.
//!
//! librdmacm opens `/dev/infiniband/rdma_cm` and writes commands to it. [`hooks`] intercepts them, [`commands`] parses them, and
//! [`resolve`], [`connect`], [`route`], [`qp_attr`] and [`multicast`] apply them to an [`id`]. Below them the protocol (crate `cm`)
//! communicates over QP1 of each function in use ([`mod@line`]); its results pass through [`cm_events`] to the program's [`mod@file`] as
//! events. The [`manager`] holds all state under one lock; a thread of [`waiting`] waits for messages and timers.

mod cm_board;
mod cm_events;
mod commands;
mod connect;
mod file;
mod group;
pub mod hooks;
mod id;
mod ip_header;
mod line;
mod lines;
mod manager;
mod multicast;
mod open_files;
mod port_binding;
mod ports;
mod qp_attr;
mod resolve;
mod route;
mod show;
mod slab;
mod sockaddr;
mod source;
mod subnet;
#[cfg(test)]
mod tests;
mod uapi;
mod waiting;
