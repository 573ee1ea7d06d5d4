//! The stream: the messages from a driver to a function, in order, as a bus analyser would see them.
//!
//! A [`Tap`](tap::Tap) is notified of every write to BAR0 and reads the driver's memory: the command queue when its
//! doorbell rings, and the rings of the queues that commands created. [`Recording`] puts a tap in front of a served
//! function, [`RecordingTransport`] behind a driver, so that model and driver need no code for it, and there is no cost
//! while nothing is recorded. [`mod@file`] is the file format of both, [`text`] prints it with the names of `hwspec`,
//! and [`words`] compares two streams.

mod device;
mod driver_side;
pub mod event;
pub mod file;
pub mod lines;
pub mod normal;
mod rings;
pub mod tap;
pub mod text;
pub mod words;

pub use device::Recording;
pub use driver_side::RecordingTransport;
