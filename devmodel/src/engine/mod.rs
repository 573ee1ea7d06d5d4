//! What makes the pipeline run: the functional runner, and the timed one.

pub(crate) mod rig;
mod runner;

pub use runner::{Link, Runner, Trace, TraceEvent, Traced, Verdict};
