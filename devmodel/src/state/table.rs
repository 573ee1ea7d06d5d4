//! The tables that a function's rows are kept in.

/// The tables of a function's block, in the order they lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Table {
    Function,
    Journal,
    Eq,
    Pd,
    Uar,
    Td,
    Xrcd,
    Counter,
    Uctx,
    Umem,
    Memic,
    /// Device memory itself.
    MemicPage,
    /// Memberships of QPs in multicast groups.
    Group,
    Sq,
    Rq,
    Tis,
    Tir,
    Rqt,
    FlowTable,
    FlowGroup,
    FlowEntry,
    FlowCounter,
    /// Multicast groups of the subnet; the PF's are used.
    SubnetGroup,
    /// The settings that the e-switch's manager made for each function's port; this and the next two are the PF's.
    Vport,
    /// Addresses the port takes from the wire.
    L2,
    /// Elements that share out the bandwidth.
    Scheduling,
    /// The counts of the e-switch's flow tables: see `region::Region::flow_count`.
    FlowCount,
    Srq,
    Cq,
    Qp,
    /// The requester's records of requests under way: `SendRecord::PER_QP` rows for each QP.
    SendRecord,
    /// The responder's records of READs and atomics: `ReadResource::PER_QP` rows for each QP.
    ReadResource,
    /// How fast QPs may send that were notified of congestion.
    Congestion,
    Mkey,
    Mtt,
    Timer,
    Ready,
    /// Of each row of the tables of objects: which was freed after it, and whether its memory went back.
    Link,
    RxSlot,
    RxPayload,
}

impl Table {
    /// Tables whose numbers peers know. They come back late also over resets: a queue pair with a number that a peer still
    /// thinks connected is refused as a stale connection (IBTA 12.9.8.3.1), and what is written to a key of before must not
    /// hit memory of now. Nor can a peer tell the next number from those it has seen.
    pub const KNOWN_TO_PEERS: [Self; 3] = [Self::Qp, Self::Srq, Self::Mkey];

    /// All tables, in order.
    pub const ALL: [Self; 40] = [
        Self::Function,
        Self::Journal,
        Self::Eq,
        Self::Pd,
        Self::Uar,
        Self::Td,
        Self::Xrcd,
        Self::Counter,
        Self::Uctx,
        Self::Umem,
        Self::Memic,
        Self::MemicPage,
        Self::Group,
        Self::Sq,
        Self::Rq,
        Self::Tis,
        Self::Tir,
        Self::Rqt,
        Self::FlowTable,
        Self::FlowGroup,
        Self::FlowEntry,
        Self::FlowCounter,
        Self::SubnetGroup,
        Self::Vport,
        Self::L2,
        Self::Scheduling,
        Self::FlowCount,
        Self::Srq,
        Self::Cq,
        Self::Qp,
        Self::SendRecord,
        Self::ReadResource,
        Self::Congestion,
        Self::Mkey,
        Self::Mtt,
        Self::Timer,
        Self::Ready,
        Self::Link,
        Self::RxSlot,
        Self::RxPayload,
    ];

    /// Tables of objects, whose rows are allocated and freed, in order.
    pub fn of_objects() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|table| table.is_of_objects())
    }

    /// True for these. Rows of the others are there for all time, belong to rows of one of these, or have their numbers from whoever sets them.
    pub fn is_of_objects(self) -> bool {
        !matches!(
            self,
            Self::Function
                | Self::Journal
                | Self::MemicPage
                | Self::Vport
                | Self::L2
                | Self::Scheduling
                | Self::FlowCount
                | Self::SendRecord
                | Self::ReadResource
                | Self::Congestion
                | Self::Mtt
                | Self::Timer
                | Self::Ready
                | Self::Link
                | Self::RxSlot
                | Self::RxPayload
        )
    }

    /// Numbers of a table's rows are unique adapter-wide if this is set; else they are the function's own.
    pub fn is_global(self) -> bool {
        matches!(
            self,
            Self::Pd
                | Self::Td
                | Self::Xrcd
                | Self::Srq
                | Self::Cq
                | Self::Qp
                | Self::Mkey
                | Self::Sq
                | Self::Rq
        )
    }

    /// High bits of a table's numbers: send and receive queues without a QP share the 24 bits of QP numbers.
    #[inline]
    pub const fn mark(self) -> u32 {
        match self {
            Self::Sq => 0x80_0000,
            Self::Rq => 0xc0_0000,
            _ => 0,
        }
    }
}
