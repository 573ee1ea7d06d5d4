//! Connections by communication management between two ends, on a link controlled by the test.

mod dissect;
mod faults;
mod handshake;
mod link;
