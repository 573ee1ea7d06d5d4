//! The network that joins the cards of many hosts: links and switches that queue, mark, pause and drop.
//!
//! [`Topology`] says who is joined to whom; it can be read from the files of HPCC's simulator. [`Fabric`] moves packets through it in
//! virtual time and knows nothing of what is in them.

mod fabric;
mod topology;

pub use fabric::{Ecn, Pause, Pfc, PortLoad, Settings};
pub(crate) use fabric::{Fabric, Move, Packet};
pub use topology::{Link, Topology, TopologyError};
