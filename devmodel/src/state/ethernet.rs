//! Objects of the Ethernet side: queues without a queue pair, transport interfaces, flow tables.

use super::{Head, WorkQueue, WqMemory, objects::rows};
use hwspec::wqe::WQE_BB_SHIFT;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the headers that an entry matches: `MatchHeaders`.
pub const MATCH: usize = 64;
/// Destinations an entry may have.
pub const DESTINATIONS: usize = 4;
/// Counters an entry may have.
pub const ENTRY_COUNTERS: usize = 2;
/// Root flow tables: NIC receive, and the forwarding database of the e-switch.
pub const FLOW_ROOTS: usize = 2;

rows! {
    /// Send queue without a queue pair. Indices are free-running 16-bit counters of basic blocks.
    SqRow {
        /// Ring.
        memory: WqMemory,
        /// Doorbell record.
        dbr: u64,
        /// CQ number.
        cqn: u32,
        /// Protection domain number.
        pd: u32,
        /// UAR of its doorbells.
        uar: u32,
        /// Transport interface send.
        tis: u32,
        /// `user_index`, returned in CQEs where the CQE version asks for it.
        user_index: u32,
        /// log2 of basic blocks.
        log_size: u32,
        /// State of the context: 0 reset, 1 ready, 3 error.
        state: u32,
        /// Bit 0: reserved lkey usable; bit 1: flush completions in error; bit 2: in the ready ring.
        flags: u32,
        /// Producer index as last read.
        pi: u32,
        /// Next WQE to process.
        ci: u32,
        /// First dword of the part of `sqc` beyond these fields, returned by a query.
        context: u32,
        /// User memory objects of the ring and the doorbell record, index plus one; 0 is none.
        umems: [u16; 2],
    }
    /// Receive queue without a queue pair. Indices are free-running 16-bit counters of WQEs.
    RqRow {
        /// Ring.
        memory: WqMemory,
        /// Doorbell record.
        dbr: u64,
        /// CQ number.
        cqn: u32,
        /// Protection domain number.
        pd: u32,
        /// `user_index`, returned in CQEs where the CQE version asks for it.
        user_index: u32,
        /// log2 of WQEs.
        log_size: u32,
        /// log2 of a WQE in bytes.
        log_stride: u32,
        /// State of the context: 0 reset, 1 ready, 3 error.
        state: u32,
        /// [`RLKY`](RqRow::RLKY) and the other flags below.
        flags: u32,
        /// Counter set.
        counter_set: u32,
        /// Producer index as last read.
        pi: u32,
        /// Next WQE to consume.
        ci: u32,
        /// First dword of the part of `rqc` beyond these fields, returned by a query.
        context: u32,
        /// In error: interval after the last check for receives to flush, us.
        flush_wait: u32,
        /// User memory objects of the ring and the doorbell record, index plus one; 0 is none.
        umems: [u16; 2],
        /// Padding.
        reserved: u32,
    }
    /// Transport interface send.
    TisRow {
        /// Transport domain.
        td: u32,
        /// Protection domain.
        pd: u32,
        /// Priority.
        prio: u32,
        /// Padding.
        reserved: u32,
    }
    /// Transport interface receive.
    TirRow {
        /// Transport domain.
        td: u32,
        /// 0: all packets go to `rqn`; 1: to the entry of the table that the hash selects.
        disp: u32,
        /// Receive queue number.
        rqn: u32,
        /// Receive queue table.
        rqt: u32,
        /// Hash function: 0 none, 1 inverted XOR, 2 Toeplitz.
        hash: u32,
        /// Bits 3:0 are the hashed fields, bit 30 selects UDP instead of TCP, bit 31 IPv6 instead of IPv4.
        fields: u32,
        /// `self_lb_block`: the accepted frames from its own transport domain, such as [`TirRow::MULTICAST`]. Linux's names contradict each
        /// other: it sets a bit to allow the loopback (`mlx5_ib`'s MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC), and writes 0 to block it.
        self_loopback: u32,
        /// 1: both directions of a flow have the same hash.
        symmetric: u32,
        /// Toeplitz key.
        key: [u8; 40],
    }
    /// Receive queue table.
    RqtRow {
        /// First translation entry with its queue numbers.
        mtt: u32,
        /// Largest number of queues.
        max: u32,
        /// Number of queues.
        actual: u32,
        /// Padding.
        reserved: u32,
    }
    /// Flow table.
    FlowTableRow {
        /// Level: an entry can forward only to tables of higher levels.
        level: u32,
        /// log2 of the entries.
        log_size: u32,
        /// The action on packets that match no entry: 0 drop, 1 continue at `miss`.
        miss_action: u32,
        /// Table index.
        miss: u32,
        /// Entry with the lowest flow index, plus one; 0 is none.
        first: u32,
        /// Nonzero: all user contexts may create groups and entries in it.
        shared: u32,
        /// `table_type`.
        kind: u32,
        /// Vport it applies to, for types with a table per vport.
        vport: u32,
    }
    /// Flow group: entries of a table that match the same fields.
    FlowGroupRow {
        /// Table index.
        table: u32,
        /// First flow index.
        start: u32,
        /// Last flow index.
        end: u32,
        /// `match_criteria_enable`.
        criteria: u32,
        /// Bits that are compared.
        mask: [u8; MATCH],
        /// Bits of the source vport's number that are compared.
        port: u32,
        /// Padding.
        reserved: u32,
    }
    /// Flow table entry.
    FlowEntryRow {
        /// Table index.
        table: u32,
        /// Group index.
        group: u32,
        /// Flow index.
        flow: u32,
        /// Entry with the next flow index, plus one; 0 is the last.
        next: u32,
        /// `flow_context.action`.
        action: u32,
        /// Tag a receive CQE carries.
        tag: u32,
        /// Destinations of packets: destination type in the high byte, then the number.
        to: [u32; DESTINATIONS],
        /// Counter indices.
        counters: [u32; ENTRY_COUNTERS],
        /// Number of destinations, number of counters.
        count: [u32; 2],
        /// The value that the bits of the group's mask must have.
        value: [u8; MATCH],
        /// The value that the bits of the source vport's number must have.
        port: u32,
        /// Destination vports, one bit each, followed by the uplink.
        vports: [u32; 5],
        /// VLAN tags to push, from the innermost: EtherType in the upper half, then the tag control information.
        push: [u32; 2],
    }
    /// Counter of packets that match.
    FlowCounterRow {
        /// Packet count.
        packets: u64,
        /// Byte count.
        octets: u64,
    }
}

impl SqRow {
    /// In `flags`: the reserved lkey is usable.
    pub const RLKY: u32 = 1;
    /// In `flags`: WQEs are completed with an error while the queue is in error.
    pub const FLUSH: u32 = 2;
    /// In `flags`: has a transport interface, which it needs to send frames.
    pub const HAS_TIS: u32 = 8;
    /// In `flags`: is in the ready ring.
    pub const READY: u32 = 4;

    /// The queue's ring and indices.
    pub fn wq(&self) -> WorkQueue {
        WorkQueue::of_row(self.memory, self.dbr, [self.pi, self.ci, self.log_size, WQE_BB_SHIFT])
    }
}

impl TirRow {
    /// In `self_loopback`: multicast frames.
    pub const MULTICAST: u32 = 2;
}

impl RqRow {
    /// In `flags`: the reserved lkey is usable.
    pub const RLKY: u32 = 1;
    /// In `flags`: holds a reference to its protection domain.
    pub const HAS_PD: u32 = 4;
    /// In `flags`: VLAN tags are not stripped.
    pub const KEEP_VLAN: u32 = 2;
    /// In `flags`: WQEs are completed with an error while the queue is in error.
    pub const FLUSH: u32 = 8;
    /// In `flags`: the timer heap has an entry of the queue.
    pub const TIMED: u32 = 16;

    /// The queue's ring and indices.
    pub fn wq(&self) -> WorkQueue {
        WorkQueue::of_row(self.memory, self.dbr, [self.pi, self.ci, self.log_size, self.log_stride])
    }
}

impl FlowEntryRow {
    /// In `action`: let the packet pass.
    pub const ALLOW: u32 = 1;
    /// In `action`: drop the packet.
    pub const DROP: u32 = 2;
    /// In `action`: forward the packet to the destinations in `to`.
    pub const FORWARD: u32 = 4;
    /// In `action`: count the packet.
    pub const COUNT: u32 = 8;
    /// In `action`: pop the outermost VLAN tag.
    pub const POP: u32 = 0x80;
    /// In `action`: push a VLAN tag.
    pub const PUSH: u32 = 0x100;
    /// In `action`: pop one more VLAN tag.
    pub const POP_2: u32 = 0x400;
    /// In `action`: push one more VLAN tag.
    pub const PUSH_2: u32 = 0x800;
    /// In `action`: all VLAN tag actions.
    pub const TAGS: u32 = Self::POP | Self::PUSH | Self::POP_2 | Self::PUSH_2;
    /// In `to`, destination type: a vport, which is kept in `vports` instead.
    pub const TO_VPORT: u32 = 0;
    /// In the last word of `vports`: the uplink.
    pub const UPLINK: u32 = 1;
    /// In `to`, destination type: a flow table.
    pub const TO_TABLE: u32 = 1;
    /// In `to`, destination type: a TIR.
    pub const TO_TIR: u32 = 2;
}
