//! The connection manager's device, for the stock librdmacm: what the kernel's rdma_ucm and rdma_cm do, in the process.
//!
//! librdmacm opens `/dev/infiniband/rdma_cm` and writes commands to it. [`hooks`] brings them here, [`commands`] reads
//! them, and [`resolve`], [`connect`], [`route`], [`qp_attr`] and [`multicast`] are what they do to an [`id`]. Under them the
//! protocol (the crate `cm`) speaks over QP1 of each function that is used ([`mod@line`]); what it has to tell comes back in
//! [`cm_events`] and lies in the program's [`mod@file`] as an event. All state is the [`manager`]'s, under one lock; the [`thread`]
//! of [`waiting`] waits for messages and times.

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
mod thread;
mod uapi;
mod waiting;
