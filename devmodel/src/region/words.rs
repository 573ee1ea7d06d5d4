//! Words of a function that parties touch without its lock.

/// Words of a function that parties touch without holding its lock, by cache line: what the holder writes, what senders write,
/// what both look at. Processors fetch lines in pairs and the next ones ahead, so those lie well apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Sync {
    /// Receive ring: frames put in, free-running. For fillers: who takes frames looks at the slots.
    RxTail = 516,
    /// Receive ring: frames that found no room.
    RxFull = 520,
    /// Receive ring: `RxHead` as its fillers last saw it. They look again only when the ring seems full.
    RxSeen = 524,
    /// Payloads of the receive ring that have memory, a bit for each few of them: the first half.
    RxBacked = 528,
    /// The second half.
    RxBackedToo = 532,
    /// Receive ring: slots given back to the senders, free-running.
    RxHead = 4,
    /// 1: powered and present (the PF, and VFs from VF Enable on).
    Present = 1536,
    /// Not 0: takes frames to group addresses. Bits: [`GROUP_QP`], [`GROUP_ETHERNET`], [`GROUP_STRANGERS`],
    /// [`GROUP_ADDRESSES`].
    Group = 1540,
    /// Of the PF: bit 0 says that frames go by what the e-switch was told, and not by the addresses functions are born with; what
    /// is above it rises with every change of that.
    Switch = 1560,
    /// QPs that wait to send: bit 0 if the ready ring is not empty.
    Ready = 8,
    /// Earliest timer, in units of 2^20 ps, rounded down; 0 is none.
    Timer = 12,
}

/// Where the function's lock lies among these words, and that of its receive ring's fillers.
pub(super) const FUNCTION_LOCK: usize = 16;
pub(super) const RING_LOCK: usize = 536;

/// [`Sync::Group`]: a QP is attached to a group.
pub const GROUP_QP: u32 = 1;
/// [`Sync::Group`]: there are flow tables.
pub const GROUP_ETHERNET: u32 = 2;
/// [`Sync::Group`]: takes unicast frames to other addresses than its own.
pub const GROUP_STRANGERS: u32 = 4;
/// [`Sync::Group`]: its addresses are not those it was born with. Says nothing of frames to groups.
pub const GROUP_ADDRESSES: u32 = 8;

/// Functions of an adapter, by bit.
pub type FunctionSet = u128;
