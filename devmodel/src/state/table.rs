//! The tables that a function's rows are kept in.

macro_rules! tables { ($( $(#[$m:meta])* $T:ident, )*) => {
    /// The tables of a function's block, in memory order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    #[allow(missing_docs)]
    pub enum Table {
        $( $(#[$m])* $T, )*
    }

    impl Table {
        /// All tables, in order.
        pub const ALL: [Self; [$( Self::$T ),*].len()] = [$( Self::$T ),*];
    }
} }

tables! {
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
    /// The bytes of device memory.
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
    /// Multicast groups of the subnet; only the PF's are used.
    SubnetGroup,
    /// Tables that the subnet administrator is sending; only the PF's are used.
    SubnetSend,
    /// The e-switch manager's settings for each function's port; only the PF's rows of this and the next two tables are used.
    Vport,
    /// MAC addresses that the port accepts from the wire.
    L2,
    /// Scheduling elements that divide the bandwidth.
    Scheduling,
    /// The counts of the e-switch's flow tables, updated by `region::Region::flow_count`.
    FlowCount,
    Srq,
    Cq,
    Qp,
    /// The requester's records of outstanding requests: `SendRecord::PER_QP` rows for each QP.
    SendRecord,
    /// The responder's records of READs and atomics: `ReadResource::PER_QP` rows for each QP.
    ReadResource,
    /// Rates of QPs that received congestion notifications.
    Congestion,
    Mkey,
    Mtt,
    Timer,
    Ready,
    /// For each row of the object tables: the row that was freed next, and whether its memory was released.
    Link,
    RxSlot,
    RxPayload,
}

impl Table {
    /// Tables with numbers that peers know. Their numbers are reused late, even across resets: a queue pair with a number that a peer still
    /// considers connected would be refused as a stale connection (IBTA 12.9.8.3.1), and a write to an old key must not hit new memory. A
    /// peer also cannot predict the next number from those it has seen.
    pub const KNOWN_TO_PEERS: [Self; 3] = [Self::Qp, Self::Srq, Self::Mkey];

    /// The object tables, with rows that are allocated and freed, in order.
    pub fn of_objects() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|table| table.is_of_objects())
    }

    /// True for object tables. Rows of other tables are permanent, belong to rows of object tables, or are numbered by the command that
    /// sets them.
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

    /// True if the table's numbers are unique in the whole adapter, false if they are local to the function.
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
