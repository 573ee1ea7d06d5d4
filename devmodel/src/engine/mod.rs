//! The pipeline's runners: the functional one and the timed one.

mod cache;
mod card;
mod dispatch;
mod eswitch;
pub mod faults;
mod macs;
mod mirror;
pub mod network;
pub(crate) mod rig;
mod route;
mod runner;
pub mod scenario;
mod sched;
pub mod sim;
pub mod spans;
mod tags;
mod text;
pub mod timed;
pub mod timing;

pub use crate::wire::{Link, Verdict};
pub use card::{Load, Station};
pub use macs::Macs;
pub use mirror::TakeFrame;
pub use runner::{Runner, Trace, TraceEvent, Traced};
pub use sched::{Ps, Schedule};
pub use text::TextError;
