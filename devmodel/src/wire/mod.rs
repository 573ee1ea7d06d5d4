//! The wire between the functions and to the world: who gets a frame, what befalls it, and who else sees it.

mod faults;
mod pcap;
mod switch;

pub use faults::{Faults, FaultsError, FaultyWire};
pub use pcap::Capture;
pub(crate) use switch::Destination;
