//! The wire between the functions and to the outside: faults on it, and its observers.

mod faults;
mod link;
mod pcap;
pub mod rules;

pub(crate) use faults::CERTAIN;
pub use faults::{Faults, FaultsError};
pub(crate) use link::pass;
pub use link::{Link, Verdict};
pub use pcap::Capture;
