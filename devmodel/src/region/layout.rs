//! Sizes in a region.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Maximum number of functions of an adapter.
pub(super) const FUNCTIONS: u8 = 128;
/// Bytes of a function's words that parties access without its lock.
pub(super) const SYNC: usize = 4096;
/// Pages of device memory of a function.
pub(super) const MEMIC_PAGES: usize = 64;
/// The longest frame, an Ethernet jumbo frame.
pub const MAX_FRAME: usize = 9216;
/// Slots of a ring.
pub const SLOTS: usize = 512;
/// Bytes of payload that a slot holds by value.
pub(super) const PAYLOAD: usize = MAX_FRAME;
/// Lanes of an outlet. All fillers but one may be stopped in the middle of a frame.
pub(super) const OUTLET_LANES: usize = 4;
/// Bytes of the words of each lane.
pub(super) const OUTLET_WORDS: usize = 4096;

/// A way for frames to leave the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// Frames for destinations that are not functions of this adapter.
    Uplink,
    /// Copies of frames on the wire.
    Capture,
}
