//! The tables that a function's rows are kept in.

use super::*;

/// A row of an object table.
pub trait Row: Copy + 'static {
    /// The table that holds it.
    const TABLE: Table;
    /// Allocation and ownership.
    fn head(&self) -> &Head;
    /// Mutable access to the [`head`](Self::head).
    fn head_mut(&mut self) -> &mut Head;
}

/// The numbers of a table's objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    /// Allocated, and local to the function.
    Local,
    /// Allocated, and unique in the whole adapter.
    Global,
    /// Chosen by the command that sets the row.
    Chosen,
}

/// The tables of a function's block, in memory order; for those of objects, the numbers and the row.
macro_rules! tables { ($( $(#[$m:meta])* $T:ident $(= $numbers:ident $R:ident)?, )*) => {
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

        /// The numbers of a table's objects, and the bytes of their rows. `None` for tables without objects.
        const fn objects(self) -> Option<(Numbers, usize)> {
            match self {
                $( $( Self::$T => Some((Numbers::$numbers, size_of::<$R>())), )? )*
                _ => None,
            }
        }
    }

    $( $( impl Row for $R {
        const TABLE: Table = Table::$T;
        fn head(&self) -> &Head { &self.head }
        fn head_mut(&mut self) -> &mut Head { &mut self.head }
    } )? )*
} }

tables! {
    Function,
    Journal,
    Eq = Local EqRow,
    Pd = Global PdRow,
    Uar = Local UarRow,
    Td = Global TdRow,
    Xrcd = Global XrcdRow,
    Counter = Local CounterRow,
    Uctx = Local UctxRow,
    Umem = Local UmemRow,
    Memic = Local MemicRow,
    /// The bytes of device memory.
    MemicPage,
    /// Memberships of QPs in multicast groups.
    Group = Local GroupRow,
    Sq = Global SqRow,
    Rq = Global RqRow,
    Tis = Local TisRow,
    Tir = Local TirRow,
    Rqt = Local RqtRow,
    FlowTable = Local FlowTableRow,
    FlowGroup = Local FlowGroupRow,
    FlowEntry = Local FlowEntryRow,
    FlowCounter = Local FlowCounterRow,
    /// Ports of other adapters on the subnet; only the PF's are used.
    SubnetPort = Local SubnetPortRow,
    /// Multicast groups of the subnet; only the PF's are used.
    SubnetGroup = Local SubnetGroupRow,
    /// Tables that the subnet administrator is sending; only the PF's are used.
    SubnetSend = Local SubnetSendRow,
    /// The e-switch manager's settings for each function's port; only the PF's rows of this and the next two tables are used.
    Vport = Chosen VportRow,
    /// MAC addresses that the port accepts from the wire.
    L2 = Chosen L2Row,
    /// Scheduling elements that divide the bandwidth.
    Scheduling = Local SchedulingRow,
    /// The counts of the e-switch's flow tables, updated by `region::Region::flow_count`.
    FlowCount,
    Srq = Global SrqRow,
    Cq = Global CqRow,
    Qp = Global QpRow,
    /// The requester's records of outstanding requests: `SendRecord::PER_QP` rows for each QP.
    SendRecord,
    /// The responder's records of READs and atomics: `ReadResource::PER_QP` rows for each QP.
    ReadResource,
    /// Rates of QPs that received congestion notifications.
    Congestion,
    Mkey = Global MkeyRow,
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
        matches!(self.objects(), Some((Numbers::Local | Numbers::Global, _)))
    }

    /// True if the table's numbers are unique in the whole adapter, false if they are local to the function.
    #[inline(always)]
    pub const fn is_global(self) -> bool {
        matches!(self.objects(), Some((Numbers::Global, _)))
    }

    /// Bytes of an object's row; `None` for tables without objects.
    pub(crate) const fn object_size(self) -> Option<usize> {
        match self.objects() {
            Some((_, size)) => Some(size),
            None => None,
        }
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
