//! Connections by communication management between two ends, on a link that a test controls.

mod dissect;
mod faults;
mod handshake;
mod link;
