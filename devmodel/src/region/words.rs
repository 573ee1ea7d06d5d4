//! Words of a function that parties access without its lock.

/// Words of a function that parties access without holding its lock, grouped by cache line: written by the holder, written by
/// senders, read by both. Processors fetch lines in pairs and prefetch the next ones, so the groups are well apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sync {
    /// Receive ring: frames put in, free-running. For fillers; the consumer looks at the slots instead.
    RxTail = 516,
    /// Receive ring: frames dropped for lack of room.
    RxFull = 520,
    /// Receive ring: `RxHead` as last seen by the fillers, which reread it only when the ring seems full.
    RxSeen = 524,
    /// Receive ring: a bitmap of the backed payload groups, first half.
    RxBacked = 528,
    /// Second half of the bitmap.
    RxBackedToo = 532,
    /// Receive ring: slots returned to the senders, free-running.
    RxHead = 4,
    /// 1: powered and present (the PF; VFs from VF Enable on).
    Present = 1536,
    /// Nonzero if the function takes frames to group addresses. Bits: [`GROUP_QP`], [`GROUP_ETHERNET`], [`GROUP_STRANGERS`],
    /// [`GROUP_ADDRESSES`].
    Group = 1540,
    /// PF only. Bit 0: frames are forwarded by the e-switch's settings rather than by the functions' initial addresses.
    /// Bit 1: always. The bits above form a counter of changes to these settings.
    Switch = 1560,
    /// QPs with work to send: bit 0 is set if the ready ring is not empty.
    Ready = 8,
    /// Earliest timer, in units of 2^20 ps, rounded down; 0 is none.
    Timer = 12,
}

/// Offsets among these words of the function's lock and of the lock of its receive ring's fillers.
pub(super) const FUNCTION_LOCK: usize = 16;
pub(super) const RING_LOCK: usize = 536;

/// [`Sync::Group`]: a QP is attached to a group.
pub const GROUP_QP: u32 = 1;
/// [`Sync::Group`]: flow tables exist.
pub const GROUP_ETHERNET: u32 = 2;
/// [`Sync::Group`]: accepts unicast frames to addresses other than its own.
pub const GROUP_STRANGERS: u32 = 4;
/// [`Sync::Group`]: its addresses differ from its initial ones. Says nothing about group frames.
pub const GROUP_ADDRESSES: u32 = 8;

/// Set of functions of an adapter, one bit each.
pub type FunctionSet = u128;
