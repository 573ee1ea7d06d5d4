//! Commands: the driver's requests to the device through the command queue (PRM: command interface).
//!
//! `queue` fetches a command and writes its output, `table` lists the commands with the states and senders they are allowed for, `dispatch`
//! enforces the table, and one file per kind of object executes the commands. `kinds` lists the kinds with the objects that each refers to,
//! and `bind!` states which field of a context is kept in which field of a row. A refused command changes nothing: all its changes are
//! rolled back.

#[macro_use]
mod bind;

mod adapter;
mod call;
mod caps;
mod caps_ethernet;
mod caps_infiniband;
mod congestion;
mod counter_set;
mod cq;
mod dispatch;
mod eq;
mod eswitch;
mod flow;
mod flow_entry;
mod hca_vport;
mod kinds;
mod mad_ifc;
mod mcg;
mod memic;
mod memory;
mod mkey;
mod nic_vport;
mod object;
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
mod rq;
mod special_qps;
mod sq;
mod srq;
mod strict;
mod table;
mod tir;
mod uctx;
mod vport;

pub(crate) use kinds::end_objects;
pub(crate) use queue::{complete_held, delayed, doorbell};
pub use refusal::Syndrome;
pub use table::{COMMANDS, Command, Sender};
