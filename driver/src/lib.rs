//! How software drives a ConnectX-class function: bring-up, command queue, events, and safe Rust verbs.
//!
//! A function is reached through [`transport::Transport`]; everything above it is the same for a real card and a
//! simulated one. Read in this order: `bringup` (the order of the interface), `cmd`, `verbs`, then the two hot files
//! `post` and `poll`.

mod bringup;
mod claims;
mod cmd;
mod config;
pub mod dma;
mod eq;
pub mod error;
pub mod events;
mod function;
pub mod harness;
pub mod health;
mod inline;
mod pages;
pub mod pci;
mod poll;
mod post;
mod records;
mod shared_receive;
pub mod sriov;
mod stand_ins;
#[cfg(test)]
mod tests;
pub mod transport;
mod umr;
pub mod verbs;

pub use bringup::{Step, Watch};
pub use claims::FileId;
pub use error::{Error, PostError};
pub use events::{DeviceEvent, Event, Events, PortEvent, QpEvent, SrqEvent};
pub use health::Health;
pub use verbs::*;
