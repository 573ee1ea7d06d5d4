//! Safe verbs: RDMA objects as Rust values. Numbers and flag values are those of `libibverbs`, so a provider passes
//! them through.

mod ah;
mod attr;
mod cq;
mod create_qp;
mod device;
mod discoverer;
mod dm;
mod ends;
mod flow;
mod geometry;
mod gsi;
mod in_place;
mod key_change;
mod mcast;
mod modify;
mod mr;
mod mw;
mod neighbours;
mod path;
mod pd;
mod peers;
mod qp;
mod qp_init;
mod raw;
mod resize;
mod rss;
mod service;
mod srq;
mod transitions;
mod work;
mod wq;
mod xrc;

pub use crate::{options::OpenOptions, post::SendBatch};
pub use ah::Ah;
pub use attr::{
    AccessFlags, AddressHandle, AtomicCap, DeviceAttr, LinkLayer, PortAttr, QpAttr, QpAttrMask, QpCap,
    QpState,
};
pub use cq::{Cq, CqInit};
pub use device::Device;
pub use discoverer::open_resolving;
pub use dm::Dm;
pub use flow::{FLOW_PRIORITIES, Flow, FlowAttr, FlowKind, FlowSpec};
pub use gsi::Gsi;
pub use hwspec::{cqe::Cqe64 as RawCompletion, wire::mad::Mad};
pub use in_place::InPlace;
pub use mr::Mr;
pub use mw::{Mw, MwBind, MwType, next_variant};
pub use pd::Pd;
pub use qp::Qp;
pub use qp_init::QpInit;
pub use rss::{RssInit, RwqTable, RxHash, RxHashFields};
pub use service::Service;
pub use srq::{Srq, SrqAttr, SrqInit};
pub use work::{
    Completion, CompletionSlot, RecvWr, SendFlags, SendOp, SendWr, Sge, Target, WcFlags, WcOpcode, WcStatus,
};
pub use wq::{Wq, WqAttr, WqInit, WqState};
pub use xrc::{XrcDomain, XrcOpen};

/// The user context of objects owned by the function rather than an opener: XRC domains, SRQs and initiators, as in
/// Linux, and device memory with its keys, since `ALLOC_MEMIC` has no field for a user context.
pub(crate) const OF_FUNCTION: u16 = 0;
