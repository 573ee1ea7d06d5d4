//! What makes the pipeline run: the functional runner, and the timed one.

mod runner;

pub use runner::{Link, Runner, Verdict};
