//! The wire between the functions and to the world: what befalls frames on it, and who else sees them.

mod faults;
mod link;
mod pcap;
pub mod rules;

pub use faults::{Faults, FaultsError, FaultyWire};
pub use link::{Link, Verdict};
pub use pcap::Capture;
