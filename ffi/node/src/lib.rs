//! The simulated node: its shared memory, the programs on it, and the driver connected to the model.
//!
//! A node is one file in memory that every program maps: the adapter's region, the programs (parties) on it, and an arena for the drivers'
//! allocations. A program that rings a doorbell or polls runs the model in its own thread; one parked thread per program does the rest:
//! timers while all programs wait, interrupts, and work on memory that other programs cannot access.
//!
//! ```
//! use ironverbs_node::{Node, NodeOptions, open_device_of};
//!
//! let dir = std::path::PathBuf::from(format!("/dev/shm/ironverbs-node-doc-{}", std::process::id()));
//! let node = Node::open_or_create(&dir, &NodeOptions { vfs: Some(2), ..NodeOptions::default() })?;
//! let devices: Vec<String> = node.devices().into_iter().map(|d| format!("{} {}", d.name, d.ip)).collect();
//! assert_eq!(devices, ["iron0 127.0.0.1", "iron1 127.0.0.2", "iron2 127.0.0.3"]);
//!
//! let device = open_device_of(&node, 1)?; // a `driver::Device`, for Rust programs
//! assert!(device.is_virtual() && device.port()?.active);
//! assert_eq!(node.status()?.parties.len(), 1, "this program");
//! # drop((device, node));
//! std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Read in this order: `devices` and `place` (the devices and where they are), `dir` (the node's directory), `file` (the layout of the
//! shared file), `party` (liveness), `arena`, `lend` (program memory in the arena), `core` (a process's state of a node), `drive` and
//! `host` (how a process runs the model, and the model's view of it), `transport` (the driver's view), `parked`, `reap` (cleanup after dead
//! parties).

mod address;
mod arena;
mod beside;
mod books;
pub mod capabilities;
mod capture;
mod clock;
mod cm_board;
mod coalesce;
mod core;
mod crowd;
mod damage;
pub mod data;
pub mod devices;
pub mod dir;
mod doorbells;
mod drive;
mod engine;
mod error;
mod faults;
mod file;
mod frames;
pub mod functions;
pub mod gid;
mod holder;
mod host;
mod interrupts;
pub mod jail;
mod lend;
mod lent;
mod locks;
mod maps;
mod memory;
pub mod naming;
mod neighbours;
mod node;
mod observer;
mod opening;
mod outlets;
mod parked;
mod party;
mod party_set;
mod patience;
mod pinned;
pub mod place;
mod pollers;
mod polling;
mod ports;
mod reap;
mod room;
mod scratch;
mod served;
mod signals;
mod status;
mod stopped;
mod suspects;
mod sys;
pub use sys::accept_barriers;
pub mod timed;
mod transport;
mod uplink;
mod vectors;
mod vfs;
mod waits;

#[cfg(test)]
mod tests;

pub use address::FunctionAddress;
pub use capture::{CaptureThread, Captured};
pub use cm_board::{CmBoard, CmId};
pub use error::NodeError;
pub use faults::FaultThread;
pub use frames::Frames;
pub use holder::Holder;
pub use node::{Node, NodeOptions};
pub use observer::{Observer, Owner, Seen};
pub use opening::{PlaceError, open_device, open_device_of};
pub use ports::{ADDRESSES, Hold, Matter, PortAt, Ports, TCP};
pub use served::ServedFunction;
pub use signals::Signals;
pub use status::{FunctionStatus, NodeStatus, PartyStatus};
pub use transport::NodeTransport;
pub use uplink::{AddressRequest, UplinkHold};
pub use vfs::DEFAULT as DEFAULT_VFS;
