//! The layout of the region.

use super::{
    journal_layout,
    layout::{FUNCTIONS, MEMIC_PAGES, OUTLET_LANES, OUTLET_WORDS, Outlet, PAGE, PAYLOAD, SLOTS, SYNC},
    slot::Slot,
};
use crate::state::{
    FunctionRow, ReadResource, SUBNET_GROUPS, SUBNET_PORTS, SUBNET_SENDS, SendRecord, Table, TimerRow,
};
use crate::transport::Congestion;

/// Bytes of a row of [`Table::FlowCount`].
pub(super) const FLOW_COUNT: usize = 16;

/// Number of functions, and the table sizes of each as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    /// PF and VFs, at most 128.
    pub functions: u8,
    /// QPs per function.
    pub log_qp: u8,
    /// CQs per function.
    pub log_cq: u8,
    /// Memory keys per function.
    pub log_mkey: u8,
    /// Translation entries per function.
    pub log_mtt: u8,
    /// SRQs (and RMPs, XRC SRQs) per function.
    pub log_srq: u8,
    /// PDs, transport domains, XRC domains per function.
    pub log_pd: u8,
    /// Journals per function; further parties share them.
    pub log_parties: u8,
    /// Bytes of the uplink ring.
    pub log_uplink: u8,
    /// Bytes of the capture ring.
    pub log_capture: u8,
}

impl Geometry {
    /// The adapter of a node, with 128 functions; untouched rows cost nothing.
    pub const NODE: Self = Self {
        functions: 128,
        log_qp: 16,
        log_cq: 16,
        log_mkey: 17,
        log_mtt: 20,
        log_srq: 12,
        log_pd: 15,
        log_parties: 8,
        log_uplink: 22,
        log_capture: 24,
    };
    /// A small adapter for tests: a PF and three VFs.
    pub const SMALL: Self = Self {
        functions: 4,
        log_qp: 8,
        log_cq: 8,
        log_mkey: 8,
        log_mtt: 12,
        log_srq: 6,
        log_pd: 6,
        log_parties: 3,
        log_uplink: 16,
        log_capture: 16,
    };

    /// True if all sizes are within what the interface can express (24-bit numbers, adapter-wide).
    pub fn is_sane(&self) -> bool {
        self.functions >= 1
            && self.functions <= FUNCTIONS
            && [self.log_qp, self.log_cq, self.log_mkey, self.log_srq, self.log_pd]
                .iter()
                .all(|l| (4..=17).contains(l))
            && (8..=24).contains(&self.log_mtt)
            && self.log_parties <= 8
            && [self.log_uplink, self.log_capture].iter().all(|l| (14..=30).contains(l))
    }

    /// Bytes of the whole region.
    pub fn size(&self) -> usize {
        self.block_at(self.functions)
    }

    /// Offset of the words of function `fid` that parties access without its lock; they follow the header.
    pub(super) const fn words_at(fid: u8) -> usize {
        PAGE + fid as usize * SYNC
    }

    /// Offset of the words of a lane of an outlet; they follow those of the functions.
    pub(super) const fn lane_words_at(which: Outlet, lane: usize) -> usize {
        Self::words_at(FUNCTIONS) + (which as usize * OUTLET_LANES + lane) * OUTLET_WORDS
    }

    /// Bytes of the header and all these words.
    pub(super) const FRONT: usize = Self::lane_words_at(Outlet::Capture, OUTLET_LANES);

    /// Offset of the ring of a lane of an outlet.
    pub(super) fn lane_at(&self, which: Outlet, lane: usize) -> usize {
        let before = match which {
            Outlet::Uplink => 0,
            Outlet::Capture => OUTLET_LANES * self.outlet_size(Outlet::Uplink),
        };
        Self::FRONT + before + lane * self.outlet_size(which)
    }

    /// Offset of function `fid`'s block.
    pub(super) fn block_at(&self, fid: u8) -> usize {
        self.lane_at(Outlet::Capture, OUTLET_LANES) + fid as usize * self.block()
    }

    /// True if `offset` is within a journal. A party that loses its own pages there continues; only a rollback of its job after it is
    /// killed becomes impossible.
    pub fn is_journal(&self, offset: usize) -> bool {
        let blocks = usize::from(self.functions) * self.block();
        let Some(past) = offset.checked_sub(self.block_at(0)).filter(|past| *past < blocks) else {
            return false;
        };
        let first = self.table_offset(Table::Journal);
        let all = Table::Journal.rows(self) * journal_layout::SIZE;
        (first..first + all).contains(&(past % self.block()))
    }

    /// Bytes of the ring of each lane of an outlet.
    pub(super) fn outlet_size(&self, which: Outlet) -> usize {
        match which {
            Outlet::Uplink => 1 << self.log_uplink,
            Outlet::Capture => 1 << self.log_capture,
        }
    }

    /// Number of links of the tables before `table`; `None` if it has no links.
    pub(super) fn links_before(&self, table: Table) -> Option<usize> {
        let before = Table::of_objects().take_while(|t| *t as usize != table as usize);
        table.is_of_objects().then(|| before.map(|t| t.rows(self)).sum())
    }

    pub(super) fn block(&self) -> usize {
        Table::ALL.iter().map(|t| pages(t.rows(self) * t.row_size())).sum()
    }

    /// Offset of `table` within a function's block.
    pub(super) fn table_offset(&self, table: Table) -> usize {
        let mut at = 0;
        for t in Table::ALL {
            if t as usize == table as usize {
                break;
            }
            at += pages(t.rows(self) * t.row_size());
        }
        at
    }
}

fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

impl Table {
    /// Number of rows per function.
    pub fn rows(self, g: &Geometry) -> usize {
        match self {
            Self::Function => 1,
            Self::Journal => 1 << g.log_parties,
            // As many as user contexts, each of which has at least one. `cmd::eq` assigns their numbers.
            Self::Eq => 1024,
            Self::Pd | Self::Td | Self::Xrcd => 1 << g.log_pd,
            Self::Uar => 1024,
            Self::Counter => 256,
            Self::Uctx => 1024,
            Self::Umem => 4096,
            Self::Memic | Self::MemicPage => MEMIC_PAGES,
            Self::Group | Self::Srq => 1 << g.log_srq,
            Self::Sq | Self::Rq => 1 << g.log_cq.min(10),
            Self::Tis | Self::Tir | Self::FlowTable | Self::FlowCounter => 256,
            Self::Rqt => 128,
            Self::FlowGroup => 1024,
            Self::FlowEntry => 8192,
            Self::SubnetPort => SUBNET_PORTS,
            Self::SubnetGroup => SUBNET_GROUPS,
            Self::SubnetSend => SUBNET_SENDS,
            Self::Vport => g.functions.into(),
            Self::L2 => 1024,
            Self::Scheduling | Self::FlowCount => 256,
            Self::Cq => 1 << g.log_cq,
            Self::Qp => 1 << g.log_qp,
            Self::SendRecord => SendRecord::PER_QP << g.log_qp,
            Self::ReadResource => ReadResource::PER_QP << g.log_qp,
            Self::Congestion => 1 << g.log_qp,
            Self::Mkey => 1 << g.log_mkey,
            Self::Mtt => 1 << g.log_mtt,
            // Per QP at most an ACK timer, an RNR timer and a rate timer; per CQ one event timer; per RQ one flush timer; per table
            // that the subnet administrator sends one response timer; one timer for commands and one for the port's rate.
            Self::Timer => {
                (3 << g.log_qp) + (1 << g.log_cq) + Self::Rq.rows(g) + Self::SubnetSend.rows(g) + 2
            }
            Self::Link => Self::of_objects().map(|t| t.rows(g)).sum(),
            // QPs, and send queues without a QP.
            Self::Ready => 2 << g.log_qp,
            Self::RxSlot | Self::RxPayload => SLOTS,
        }
    }

    /// Bytes of a row.
    pub const fn row_size(self) -> usize {
        if let Some(size) = self.object_size() {
            return size;
        }
        match self {
            Self::Function => size_of::<FunctionRow>(),
            Self::Journal => journal_layout::SIZE,
            Self::MemicPage => PAGE,
            Self::FlowCount => FLOW_COUNT,
            Self::SendRecord => size_of::<SendRecord>(),
            Self::ReadResource => size_of::<ReadResource>(),
            Self::Congestion => size_of::<Congestion>(),
            Self::Mtt => 8,
            Self::Timer => size_of::<TimerRow>(),
            Self::Ready | Self::Link => 4,
            Self::RxSlot => size_of::<Slot>(),
            Self::RxPayload => PAYLOAD,
            _ => 0,
        }
    }
}

// A table without a size above does not compile.
const _: () = {
    let mut i = 0;
    while i < Table::ALL.len() {
        assert!(Table::ALL[i].row_size() != 0);
        i += 1;
    }
};
