//! The bring-up harness: the first thing to run on a new function, or on one that does not work.
//!
//! The harness goes through the interface step by step, as the driver itself does, and reports for each step the
//! values read and expected. Read-only steps come first; steps that write run only if allowed. After the first
//! failure the remaining steps are skipped, and the function is reset.

mod inject;
mod look;
mod loopback;
mod pages;
mod plan;
mod report;
mod work;

pub use pages::Page;
pub use plan::{Outside, Plan, STEPS, StepName};
pub use report::{Follow, Outcome, Progress, Reading, Report, StepReport};

use crate::transport::Transport;
use report::Recorder;
use std::sync::Arc;

/// Runs the steps on the function behind `transport`, reporting progress to `follow`.
pub fn run(transport: &Arc<dyn Transport>, plan: &Plan, follow: Follow<'_>) -> Report {
    let mut recorder = Recorder::new(follow);
    let sound = look::all(transport, plan, &mut recorder);
    if sound && plan.write {
        work::all(transport, plan, &mut recorder);
    }
    recorder.finish(plan.write)
}
