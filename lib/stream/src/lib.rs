//! The stream: what a driver sends to a function, in order, as a bus analyser would see it.
//!
//! A [`Tap`](tap::Tap) is told of every write to BAR0 and looks into the driver's memory: at the command queue when its doorbell
//! rings, and at the rings of the queues that commands created. [`Recording`] puts one before a served function,
//! [`RecordingTransport`] behind a driver, so neither model nor driver knows of it, and neither has anything to do
//! while nothing is recorded. [`mod@file`] is the file that both write, [`text`] prints it with the names of `hwspec`, and
//! [`words`] compares two of them.

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
