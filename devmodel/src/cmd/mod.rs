//! Commands: the driver's requests to the device through the command queue (PRM: command interface).
//!
//! `queue` fetches a command and writes its output, `table` lists the commands with the states and senders they are allowed for, `dispatch`
//! enforces the table, and one file per kind of object executes the commands. A refused command changes nothing: all its changes are rolled
//! back.

mod adapter;
mod call;
mod caps;
mod caps_ethernet;
mod caps_infiniband;
mod congestion;
mod cq;
mod dispatch;
mod eq;
mod eswitch;
mod flow;
mod flow_entry;
mod hca_vport;
mod mad_ifc;
mod mcg;
mod memic;
mod memory;
mod mkey;
mod nic_vport;
mod page_requests;
mod pages;
mod port_counters;
mod qp;
mod qp_context;
mod qp_modify;
mod queue;
mod refusal;
mod registers;
mod registers_infiniband;
mod registers_management;
mod resource;
mod rq;
mod special_qps;
mod sq;
mod srq;
mod srq_context;
mod strict;
mod table;
mod tir;
mod uctx;
mod vport;

pub(crate) use queue::{complete_held, delayed, doorbell};
pub use refusal::Syndrome;
pub use table::{COMMANDS, Command, Sender};
pub(crate) use uctx::end_objects;
