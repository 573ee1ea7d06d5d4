//! The pipeline: what happens between a doorbell and a completion.

pub mod job;
pub(crate) mod step;

pub use job::Job;
pub use step::{Frame, Payload, Step};

use crate::region::Func;

/// Runs one job on its function.
pub fn dispatch(job: Job, func: &mut Func<'_>, step: &mut Step<'_>) {
    match job {
        Job::Command { slots } => crate::cmd::doorbell(func, step, slots),
        Job::Doorbell { .. }
        | Job::ArmCq { .. }
        | Job::EqUpdate { .. }
        | Job::Arrive
        | Job::Execute { .. }
        | Job::Timeout { .. }
        | Job::Flush { .. } => {}
    }
}
