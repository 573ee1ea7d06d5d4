//! Where driver and model meet, and what judges them.
//!
//! [`bed`] drives the device model alone, in logical time, through the registers, rings and records a driver would use.
//! [`direct`] joins driver and model in one thread, in logical time. [`end`] is one end of a connection made of the driver's verbs on a node; [`manager`] joins communication management to queue pair 1; [`program`] runs such ends in processes.
//! [`torture`] checks all that goes between two programs.
#![deny(unsafe_code)]

pub mod bed;
pub mod cost;
pub mod direct;
pub mod end;
pub mod manager;
pub mod program;
pub mod torture;
