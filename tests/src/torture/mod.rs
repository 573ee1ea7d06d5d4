//! Torture: two programs keep requests of all kinds and sizes outstanding on queue pairs of all services, both ways, and check every byte,
//! the order and the count of all completions and arrivals.
//!
//! [`plan`] derives the requests from a seed, so each side knows what the other sends. A *lane* is a queue pair and its peer; [`Side`] is
//! one side of all lanes on a device, and [`judge`] defines the allowed outcomes of a message when frames are lost, duplicated and
//! reordered.

pub mod judge;
mod lane;
pub mod plan;
mod side;
mod sizes;

pub use judge::Rules;
pub use side::{Peer, Side, Sums};
