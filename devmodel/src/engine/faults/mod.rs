//! The fault laboratory of virtual time: a plan says what befalls which frame, and a timeline what came of it.
//!
//! A plan is a file of `[[fault]]`s, see [`Fault`]. What a fault does not name may be anything; each befalls the frames that are as it says, from
//! the `nth` of them on and so many `times`.

mod plan;
mod refusing;
#[cfg(test)]
mod tests;
mod timeline;
mod trial;

pub use plan::{Deed, Fault, FaultPlan};
pub(crate) use refusing::Refusing;
pub use timeline::{Followed, FrameLine, Timeline};
pub(crate) use trial::Trial;

/// What came of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// How many frames each fault befell, in the order of the plan.
    pub befell: Vec<u64>,
    /// All frames.
    pub timeline: Timeline,
}
