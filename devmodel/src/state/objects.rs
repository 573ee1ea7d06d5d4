//! The common part of rows of object tables; queues, keys and domains other than the QP.

use super::COUNTERS;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of every row of an object table.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Head {
    /// 1: allocated. 0: free.
    pub live: u32,
    /// Padding.
    pub reserved: u32,
    /// User context that owns the object; 0 is the function's own driver.
    pub uid: u16,
    /// Party of the program that created it, which owns the memory of its queues and keys.
    pub party: u16,
    /// Number of objects that refer to this one; it can't be destroyed while this is nonzero.
    pub refs: u32,
}

/// Free list of one table: unused numbers first, then freed ones in FIFO order, so that a number is not reused soon.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FreeList {
    /// Index plus one of the least recently freed row.
    pub head: u32,
    /// Index plus one of the most recently freed row.
    pub tail: u32,
    /// Rows from here on were never used or examined.
    pub fresh: u32,
    /// Rows in use.
    pub used: u32,
    /// Rows before the first unused one at the last reset of the function.
    pub base: u32,
    /// Unused rows among the last rows before `fresh`: bit *i* is row `fresh` - 1 - *i*. They are allocated next, in an
    /// unpredictable order.
    pub block: [u32; 2],
    /// Padding.
    pub reserved: u32,
}

impl FreeList {
    /// Number of rows that are shuffled: bits of `block`.
    pub const BLOCK: u32 = 64;

    /// Reads `block`.
    pub fn unused_in_block(&self) -> u64 {
        u64::from(self.block[1]) << 32 | u64::from(self.block[0])
    }

    /// Sets `block`.
    pub fn set_unused_in_block(&mut self, rows: u64) {
        self.block = [rows as u32, (rows >> 32) as u32];
    }

    /// The fraction of a table after which a function that is reset repeatedly reuses numbers: rows once touched cost memory.
    const WINDOW: u32 = 64;

    /// The list of a table of `rows` after a reset, when all rows are free: allocation continues at the same number. It
    /// restarts at 0 if the period that ends now began beyond the first 1/`WINDOW` of the table and left unused rows.
    pub fn over_reset(&self, rows: u32) -> Self {
        // At least two blocks, so that a freshly shuffled block does not repeat the latest numbers.
        let window = (rows / Self::WINDOW).max(2 * Self::BLOCK);
        let given = self.fresh - self.unused_in_block().count_ones();
        match self.base >= window && given < rows {
            true => Self::default(),
            false => Self { used: 0, base: given, ..*self },
        }
    }
}

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

/// A work queue: its ring, its doorbell record, and the entries posted and taken. Indices are free-running 16-bit counters. Rows of queues
/// keep these values in other places.
#[derive(Clone, Copy, Debug)]
pub struct WorkQueue {
    /// Ring.
    pub memory: WqMemory,
    /// Doorbell record: receive counter, then send counter, 32 bits each.
    pub dbr: u64,
    /// Producer index as last read from the doorbell record.
    pub pi: u16,
    /// Next entry to take.
    pub ci: u16,
    /// log2 of the number of entries; an entry of a send queue is a basic block.
    pub log_size: u8,
    /// log2 of an entry in bytes.
    pub log_stride: u8,
}

impl WorkQueue {
    /// The queue of a row that keeps counters and sizes in 32 bits each.
    pub(super) fn of_row(memory: WqMemory, dbr: u64, [pi, ci, log_size, log_stride]: [u32; 4]) -> Self {
        let (pi, ci) = (pi as u16, ci as u16);
        Self { memory, dbr, pi, ci, log_size: log_size as u8, log_stride: log_stride as u8 }
    }

    /// Number of entries posted and not taken.
    #[inline(always)]
    pub fn waiting(&self) -> u16 {
        self.pi.wrapping_sub(self.ci)
    }
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
        /// [`OVERRUN_IGNORED`](CqRow::OVERRUN_IGNORED) and the other flags below.
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
        /// Ring of WQEs with next segments.
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
        /// 1: WQEs are consumed in the order of the ring, whatever their next segments say.
        cyclic: u32,
        /// User memory objects of the ring and the doorbell record, index plus one; 0 is none.
        umems: [u16; 2],
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

impl SrqRow {
    /// The queue's ring and indices.
    pub fn wq(&self) -> WorkQueue {
        let words = [self.counter, self.consumed, self.log_size, self.log_stride];
        WorkQueue::of_row(self.memory, self.dbr, words)
    }
}

impl CqRow {
    /// In `flags`: overruns are ignored.
    pub const OVERRUN_IGNORED: u32 = 1 << 0;
    /// In `flags`: every completion goes to the first entry.
    pub const COLLAPSED: u32 = 1 << 1;
    /// In `flags`: completions may be compressed, which the device never does.
    pub const COMPRESSIBLE: u32 = 1 << 3;
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
