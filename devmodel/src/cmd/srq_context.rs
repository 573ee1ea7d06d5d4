//! The three contexts of shared receive queues, in a common form.

use crate::state::SrqKind;
use hwspec::{
    cmd::srq::*,
    context::{
        srq::{RmpContext, SrqContext, XrcSrqContext},
        wq::WorkQueue,
    },
    layout::Layout,
};

/// `wq.wq_type`: each WQE links to the next.
const LINKED_LIST: u8 = 0;
/// `rmpc.state`: ready.
const RMP_READY: u8 = 1;

/// The fields that the contexts have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub log_size: u8,
    /// log2 of a WQE in bytes.
    pub log_stride: u8,
    pub log_page_size: u8,
    pub page_offset: u8,
    pub pd: u32,
    pub cqn: u32,
    pub xrcd: u32,
    pub dbr: u64,
    pub lwm: u16,
    pub user_index: u32,
    pub user_index_is_number: bool,
    /// WQEs posted and not consumed.
    pub filled: u16,
    pub umem: bool,
    pub signature: bool,
    /// True for a ring instead of a list of WQEs.
    pub cyclic: bool,
}

/// Reads the context of a create command.
pub(super) fn read(input: &[u8], kind: SrqKind) -> Shape {
    match kind {
        SrqKind::Srq => {
            let c = CreateSrqIn::read(input).srq_context_entry();
            Shape {
                log_size: c.log_srq_size(),
                log_stride: c.log_rq_stride() + 4,
                log_page_size: c.log_page_size(),
                page_offset: c.page_offset(),
                pd: c.pd(),
                dbr: c.dbr_addr(),
                lwm: c.lwm(),
                signature: c.wq_signature(),
                ..Shape::default()
            }
        }
        SrqKind::Xrc => {
            let input = CreateXrcSrqIn::read(input);
            let c = input.xrc_srq_context_entry();
            Shape {
                log_size: c.log_xrc_srq_size(),
                log_stride: c.log_rq_stride() + 4,
                log_page_size: c.log_page_size(),
                page_offset: c.page_offset(),
                pd: c.pd(),
                cqn: c.cqn(),
                xrcd: c.xrcd(),
                dbr: u64::from(c.db_record_addr_h()) << 32 | u64::from(c.db_record_addr_l()) << 2,
                lwm: c.lwm(),
                user_index: c.user_index(),
                user_index_is_number: c.user_index_equal_xrc_srqn(),
                cyclic: c.basic_cyclic_rcv_wqe(),
                umem: input.xrc_srq_umem_valid() || c.dbr_umem_valid(),
                signature: c.wq_signature(),
                ..Shape::default()
            }
        }
        SrqKind::Rmp => {
            let context = CreateRmpIn::read(input).ctx();
            let wq = context.wq();
            Shape {
                log_size: wq.log_wq_sz(),
                log_stride: wq.log_wq_stride(),
                log_page_size: wq.log_wq_pg_sz(),
                page_offset: wq.page_offset(),
                pd: wq.pd(),
                dbr: wq.dbr_addr(),
                lwm: wq.lwm(),
                umem: wq.wq_umem_valid() || wq.dbr_umem_valid(),
                signature: wq.wq_signature(),
                cyclic: wq.wq_type() != LINKED_LIST || context.basic_cyclic_rcv_wqe(),
                ..Shape::default()
            }
        }
    }
}

/// The output of a query.
pub(super) fn show(shape: &Shape, kind: SrqKind) -> Vec<u8> {
    match kind {
        SrqKind::Srq => {
            let mut c = SrqContext::zeroed();
            c.set()
                .log_srq_size(shape.log_size)
                .log_rq_stride(shape.log_stride - 4)
                .page_offset(shape.page_offset)
                .log_page_size(shape.log_page_size)
                .pd(shape.pd)
                .lwm(shape.lwm)
                .wqe_cnt(shape.filled)
                .dbr_addr(shape.dbr);
            QuerySrqOut::with(|s| s.srq_context_entry(c)).as_bytes().to_vec()
        }
        SrqKind::Xrc => {
            let mut c = XrcSrqContext::zeroed();
            c.set()
                .log_xrc_srq_size(shape.log_size)
                .log_rq_stride(shape.log_stride - 4)
                .xrcd(shape.xrcd)
                .page_offset(shape.page_offset)
                .cqn(shape.cqn)
                .log_page_size(shape.log_page_size)
                .user_index(shape.user_index & 0xff_ffff)
                .pd(shape.pd)
                .lwm(shape.lwm)
                .wqe_cnt(shape.filled)
                .db_record_addr_h((shape.dbr >> 32) as u32)
                .db_record_addr_l(shape.dbr as u32 >> 2);
            QueryXrcSrqOut::with(|s| s.xrc_srq_context_entry(c)).as_bytes().to_vec()
        }
        SrqKind::Rmp => {
            let mut wq = WorkQueue::zeroed();
            wq.set()
                .page_offset(shape.page_offset)
                .lwm(shape.lwm)
                .pd(shape.pd)
                .dbr_addr(shape.dbr)
                .log_wq_stride(shape.log_stride)
                .log_wq_pg_sz(shape.log_page_size)
                .log_wq_sz(shape.log_size);
            let c = RmpContext::with(|s| s.state(RMP_READY).wq(wq));
            QueryRmpOut::with(|s| s.rmp_context(c)).as_bytes().to_vec()
        }
    }
}
