//! The fault laboratory: a plan says what befalls which frame, and a timeline what came of it. In virtual time it is part of the timed
//! runner, in this machine's time a [`TrialWire`] that frames are diverted to.
//!
//! A plan is a file of `[[fault]]`s, see [`Fault`]. A field that a fault does not name may be anything; each fault befalls the frames that are as
//! it says, from the `nth` of them on and so many `times`.

use crate::LinkLayer;
use hwspec::wire::lrh::VCRC_SIZE;

mod plan;
mod refusing;
#[cfg(test)]
mod tests;
mod timeline;
mod trial;
mod wire;

pub use plan::{Deed, Fault, FaultPlan};
pub(crate) use refusing::Refusing;
pub use timeline::{Followed, FrameLine, Timeline};
pub(crate) use trial::Trial;
pub use wire::{Leaving, TrialWire};

/// Turns a bit of a whole frame's ICRC over, behind which InfiniBand has a VCRC.
pub(crate) fn damage(link_layer: LinkLayer, frame: &mut [u8]) {
    let behind = if link_layer == LinkLayer::Infiniband { VCRC_SIZE } else { 0 };
    if let Some(byte) = frame.len().checked_sub(behind + 1).and_then(|at| frame.get_mut(at)) {
        *byte ^= 1;
    }
}

/// The outcome of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// How many frames each fault befell, in the order of the plan.
    pub befell: Vec<u64>,
    /// All frames.
    pub timeline: Timeline,
}
