//! How software drives a ConnectX-class function: bring-up, command queue, events, and safe Rust verbs.
//!
//! A function is reached through [`transport::Transport`]; everything above it is the same for a real card and a
//! simulated one. Read in this order: `bringup` (the order of the interface), `cmd`, `verbs`, then the two hot files
//! `post` and `poll`.

pub mod dma;
pub mod error;
pub mod events;
pub mod transport;
pub mod verbs;

pub use error::{Error, PostError};
pub use events::{DeviceEvent, Event, Events, PortEvent, QpEvent};
pub use verbs::*;
