//! Where driver and model meet, and what judges them.
//!
//! [`bed`] drives the device model alone, in logical time, through the registers, rings and records a driver would use.
#![deny(unsafe_code)]

pub mod bed;
