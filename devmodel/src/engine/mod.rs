//! What makes the pipeline run: the functional runner, and the timed one.

mod delivery;
mod dispatch;
mod eswitch;
mod macs;
pub(crate) mod rig;
mod runner;
mod sched;
pub mod sim;
mod switch;
mod switched;
mod tags;
mod timed;
mod timing;

pub use crate::wire::{Link, Verdict};
pub use macs::Macs;
pub use runner::{Runner, Trace, TraceEvent, Traced};
pub use sched::Ps;
