//! Queues, keys and domains other than the QP.

use super::{COUNTERS, Head};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The memory of a queue's entries: a page list in the translation table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct WqMemory {
    /// First translation entry; 0 is none.
    pub mtt: u32,
    /// Number of translation entries.
    pub pages: u32,
    /// log2 of a page in bytes.
    pub log_page: u32,
    /// Byte offset of the first entry in the first page.
    pub offset: u32,
}

macro_rules! rows { ($( $(#[$m:meta])* $R:ident { $( $(#[$fm:meta])* $f:ident: $t:ty, )* } )*) => { $(
    $(#[$m])*
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
    #[repr(C)]
    pub struct $R {
        /// Allocation and ownership.
        pub head: Head,
        $( $(#[$fm])* pub $f: $t, )*
    }
)* } }
pub(super) use rows;

rows! {
    /// Protection domain.
    PdRow {}
    /// Transport domain.
    TdRow {}
    /// XRC domain.
    XrcdRow {}
    /// User memory object.
    UmemRow {
        /// Its page list.
        memory: WqMemory,
    }
    /// Allocated device memory: whole pages of the function's share.
    MemicRow {
        /// First byte.
        first: u32,
        /// Bytes.
        len: u32,
    }
    /// User access region: one doorbell page of BAR0. Its index is the page's number.
    UarRow {}
    /// User context.
    UctxRow {
        /// Granted capabilities.
        cap: u32,
        /// Padding.
        reserved: u32,
    }
    /// Set of queue counters.
    CounterRow {
        /// Values, indexed by [`Counters`](super::Counters).
        values: [u64; COUNTERS],
    }
    /// A QP's membership in a multicast group.
    GroupRow {
        /// The group's GID.
        gid: [u8; 16],
        /// QP index.
        qp: u32,
        /// Padding.
        reserved: u32,
    }
    /// Event queue.
    EqRow {
        /// Ring.
        memory: WqMemory,
        /// The events that this queue receives, by type (4 x 64 bits).
        mask: [u64; 4],
        /// Entries produced, free-running.
        pi: u32,
        /// Entries consumed, as last reported by the driver.
        ci: u32,
        /// log2 of the number of entries.
        log_size: u32,
        /// MSI-X vector.
        vector: u32,
        /// 1: raise the interrupt with the next entry.
        armed: u32,
        /// 1: an entry was lost because the queue was full.
        overflowed: u32,
        /// UAR it was created with.
        uar: u32,
        /// 1: CQs of all user contexts may use it, whatever the adapter's strictness.
        shared: u32,
    }
    /// Completion queue.
    CqRow {
        /// Ring.
        memory: WqMemory,
        /// Doorbell record: consumer index, then arming.
        dbr: u64,
        /// Time at which a delayed completion event is due, ps; 0 is none.
        event_at: u64,
        /// Entries produced, free-running.
        pi: u32,
        /// Consumer index as last read from the doorbell record, 24 bits.
        ci: u32,
        /// log2 of the number of entries.
        log_size: u32,
        /// Event queue for completion events.
        eqn: u32,
        /// `ArmState`: fired, armed, armed for solicited.
        arm: u32,
        /// Command sequence number of the last arming.
        arm_sn: u32,
        /// `CqStatus`: 9 is overflow.
        status: u32,
        /// UAR it was created with.
        uar: u32,
        /// `cqe_sz`: 0 is 64 bytes, 1 is 128.
        cqe_size: u32,
        /// Bit 0: overrun ignored (`oi`); bit 1: collapsed (`cc`); bit 2: the timer heap has an entry of the CQ.
        flags: u32,
        /// Moderation: period in us, and count.
        moderation: [u16; 2],
        /// Completions since the last event.
        since_event: u32,
        /// `pi` after the last completion that was solicited or an error.
        solicited: u32,
        /// User memory objects of the ring and the doorbell record, index plus one; 0 is none.
        umems: [u16; 2],
    }
    /// Shared receive queue, RMP or XRC SRQ.
    SrqRow {
        /// Ring of linked WQEs.
        memory: WqMemory,
        /// Doorbell record.
        dbr: u64,
        /// 0 SRQ, 1 XRC SRQ, 2 RMP.
        kind: u32,
        /// Protection domain number.
        pd: u32,
        /// CQ (XRC SRQ only).
        cqn: u32,
        /// XRC domain (XRC SRQ only).
        xrcd: u32,
        /// log2 of the number of WQEs.
        log_size: u32,
        /// log2 of a WQE in bytes.
        log_stride: u32,
        /// Producer counter as last read.
        counter: u32,
        /// Index of the next WQE to consume.
        next: u32,
        /// Limit; 0 is not armed.
        lwm: u32,
        /// WQEs consumed, free-running 16 bits.
        consumed: u32,
        /// User index.
        user_index: u32,
        /// Padding.
        reserved: u32,
    }
    /// Memory key.
    MkeyRow {
        /// Start of the region in the key's address space.
        start: u64,
        /// Length in bytes. Ignored if `length64`.
        len: u64,
        /// First translation entry; 0 is none (physical access).
        mtt: u32,
        /// Translation entries.
        pages: u32,
        /// log2 of a page in bytes.
        log_page: u32,
        /// Protection domain number.
        pd: u32,
        /// Low byte of the key.
        variant: u8,
        /// `AccessMode`.
        mode: u8,
        /// Bits: local read 1, local write 2, remote read 4, remote write 8, atomic 16, free 32, length64 64, umr 128.
        access: u8,
        /// Bits: remote invalidation allowed 1, relaxed ordering of writes 2, of reads 4 (stored only, the model does
        /// not need it).
        flags: u8,
        /// QPN that the key is bound to; 0xffffff is any.
        qpn: u32,
        /// Region of a memory window: the index of its key plus one; 0 is none. The region counts its windows.
        bound: u32,
        /// Padding.
        reserved: u32,
    }
}

/// One entry of the timer heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct TimerRow {
    /// Expiry, in picoseconds of the runner's clock.
    pub at: u64,
    /// Index of the QP, CQ or RQ.
    pub qp: u32,
    /// 0 acknowledgement timeout, 1 RNR wait, 2 event of a CQ, 3 receives to flush, 4 commands, 5 rate of the port, 6
    /// rate of a QP.
    pub kind: u32,
}

impl GroupRow {
    /// Most QPs of a function that one packet may reach in one job: members of a group, or QP1s.
    pub const MAX_MEMBERS: usize = 64;
}

impl CqRow {
    /// In `flags`: overruns are ignored.
    pub const OVERRUN_IGNORED: u32 = 1 << 0;
    /// In `flags`: the timer heap has an entry of the CQ.
    pub const TIMED: u32 = 1 << 2;
}

/// The `kind` of an [`SrqRow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SrqKind {
    /// A shared receive queue.
    Srq = 0,
    /// A shared receive queue of an XRC domain.
    Xrc = 1,
    /// A receive memory pool, that is, a shared receive queue created by another command.
    Rmp = 2,
}
