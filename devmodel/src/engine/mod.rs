//! What makes the pipeline run: the functional runner, and the timed one.

pub(crate) mod rig;
mod runner;
mod sched;
pub mod sim;
mod timed;
mod timing;

pub use runner::{Link, Runner, Trace, TraceEvent, Traced, Verdict};
pub use sched::Ps;
