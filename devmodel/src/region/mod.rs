//! The flat region: all state of the adapter, in one pointer-free piece of memory.
//!
//! It consists of fixed tables of plain-data rows addressed by index, so a copy of the bytes is a snapshot, and several
//! processes can map the same adapter. The layout follows from the [`Geometry`] alone.
//!
//! The model's unsafe code is in this folder. It relies on these rules: a row is only accessed through a [`Func`], which holds
//! its function's lock; words that several parties access without a lock are atomics; parties of one region trust each other
//! (hostile guests are behind a server that lets them map no part of it).
#![allow(unsafe_code)]

mod alloc;
mod back;
mod bare;
mod congestion;
mod eswitch;
mod flat;
mod frames;
mod freed;
mod func;
mod geometry;
mod journal;
mod journal_layout;
mod layout;
mod locks;
mod look;
mod lookups;
pub(crate) mod memic;
mod outlet;
mod prefetch;
mod queues;
mod ring;
mod senders;
mod slot;
#[cfg(test)]
mod tests;
mod window;
mod words;

pub use crate::state::{Row, Table};
pub use alloc::{MttRange, Shortage};
pub use flat::{Memory, Region, RegionError, Snapshot};
pub use func::{Func, Held};
pub use geometry::Geometry;
pub use journal::{Effect, JournalStats};
pub use layout::{MAX_FRAME, Outlet, SLOTS};
pub use look::PortGlimpse;
pub(crate) use lookups::{Lookup, Lookups};
pub use memic::Memic;
pub(crate) use outlet::is_watched;
pub use outlet::{Origin, OutletRing};
pub use queues::{READY_SQ, TimerKind};
pub use ring::WireRing;
pub(crate) use senders::purge_frames;
pub use slot::{Piece, Slot, SlotPayload};
pub use sync::{Lock, Patience};
pub use window::NoAddresses;
pub use words::{FunctionSet, GROUP_ADDRESSES, GROUP_ETHERNET, GROUP_QP, GROUP_STRANGERS, Sync};
