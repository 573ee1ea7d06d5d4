//! Safe verbs: the objects of RDMA as Rust values. Numbers and flag values are those of `libibverbs`, so a provider
//! passes them through.

mod attr;
mod cq;
mod device;
mod modify;
mod mr;
mod pd;
mod qp;
mod work;

pub use crate::post::SendBatch;
pub use attr::{
    AccessFlags, AddressHandle, AtomicCap, DeviceAttr, LinkLayer, PortAttr, QpAttr, QpAttrMask, QpCap,
    QpInit, QpState, Service,
};
pub use cq::Cq;
pub use device::{Device, OpenOptions};
pub use mr::Mr;
pub use pd::Pd;
pub use qp::Qp;
pub use work::{Completion, RecvWr, SendFlags, SendOp, SendWr, Sge, WcFlags, WcOpcode, WcStatus};
