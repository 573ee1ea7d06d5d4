//! The adapter's state of every object: one plain-data row each, found by index.
//!
//! Rows hold numbers only. A row is free if its [`Head::live`] is 0. Numbers of QPs, CQs, SRQs, PDs and mkeys are
//! unique in the whole adapter: function `f` owns those from `f << log`; rows hold only the index within the function.

mod congestion;
mod counters;
mod eswitch;
mod ethernet;
mod function;
mod infiniband;
mod objects;
mod qp;
mod table;

pub use crate::transport::ReadResource;
pub use congestion::CongestionRow;
pub use counters::{COUNTERS, Counters};
pub use eswitch::{L2Row, SchedulingRow, VportRow};
pub use ethernet::{
    DESTINATIONS, ENTRY_COUNTERS, FLOW_ROOTS, FlowCounterRow, FlowEntryRow, FlowGroupRow, FlowTableRow,
    MATCH, RqRow, RqtRow, SqRow, TirRow, TisRow,
};
pub use function::{
    FunctionRow, HcaState, MSIX_VECTORS, MULTICAST_LIST, MsixEntry, ROCE_ADDRESSES, RoceAddress,
    UNICAST_LIST, VLAN_LIST,
};
pub(crate) use infiniband::DEFAULT_PREFIX;
pub use infiniband::{
    ARBITRATION, IbPort, PKEYS, PORT_GUIDS, SUBNET_GROUPS, SUBNET_PORTS, SUBNET_SENDS, SubnetGroupRow,
    SubnetPortRow, SubnetSendRow,
};
pub use objects::{
    CounterRow, CqRow, EqRow, FreeList, GroupRow, Head, MemicRow, MkeyRow, PdRow, SrqKind, SrqRow, TdRow,
    TimerRow, UarRow, UctxRow, UmemRow, WorkQueue, WqMemory, XrcdRow,
};
pub use qp::{Path, QpFlags, QpRow, SendRecord};
pub use table::{Row, Table};
