//! The network between the cards of many hosts: links, and switches that queue, mark, pause and drop.
//!
//! [`Topology`] describes nodes and links; it can be read from the files of HPCC's simulator. [`Fabric`] moves packets through
//! it in virtual time, independently of their contents.

mod fabric;
mod topology;

pub use fabric::{Ecn, Pause, Pfc, PortLoad, Settings};
pub(crate) use fabric::{Fabric, Move, Packet};
pub use topology::{Link, Topology, TopologyError};
