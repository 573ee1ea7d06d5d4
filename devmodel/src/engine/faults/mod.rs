//! Fault injection: a plan selects faults for frames, and a timeline records the consequences. In virtual time it is part of
//! the timed runner; in real time it is a [`FaultWire`] to which frames are diverted.
//!
//! A plan is a file of `[[fault]]`s, each described by [`Fault`]. A field that a fault does not specify matches anything; a
//! fault applies to matching frames from the `nth` on, at most `times` times.

use crate::LinkLayer;
use hwspec::wire::lrh::VCRC_SIZE;

mod injector;
mod plan;
mod refusing;
#[cfg(test)]
mod tests;
mod timeline;
mod wire;

pub(crate) use injector::FaultInjector;
pub use plan::{Fault, FaultKind, FaultPlan};
pub(crate) use refusing::Refusing;
pub use timeline::{Followed, FrameLine, Timeline};
#[cfg(test)]
pub(crate) use wire::LINK_HEADER;
pub use wire::{FaultWire, Leaving};

/// Inverts a bit of a whole frame's ICRC; on InfiniBand a VCRC follows it.
pub(crate) fn damage(link_layer: LinkLayer, frame: &mut [u8]) {
    let behind = if link_layer == LinkLayer::Infiniband { VCRC_SIZE } else { 0 };
    if let Some(byte) = frame.len().checked_sub(behind + 1).and_then(|at| frame.get_mut(at)) {
        *byte ^= 1;
    }
}

/// The outcome of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultReport {
    /// Number of frames that each fault was applied to, in the order of the plan.
    pub hits: Vec<u64>,
    /// All frames.
    pub timeline: Timeline,
}
