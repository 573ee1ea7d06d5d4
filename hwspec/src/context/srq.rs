//! Shared receive queue contexts (PRM: `srqc`, `xrc_srqc`, `rmpc`).
use super::wq::WorkQueue;
use crate::hw_layout;

/// `rmpc.state`: ready.
pub const RMP_READY: u8 = 1;

hw_layout! {
    /// Shared receive queue context.
    pub struct SrqContext: 0x40 {
        0x000 [31:28] state: u8,
        0x000 [27:24] log_srq_size: u8,
        0x004 [31:31] wq_signature: bool,
        0x004 [30:30] cont_srq: bool,
        0x004 [28:28] rlky: bool,
        0x004 [26:24] log_rq_stride: u8,
        0x004 [23: 0] xrcd: u32,
        0x008 [31:26] page_offset: u8,
        0x008 [23: 0] cqn: u32,
        0x010 [29:24] log_page_size: u8,
        0x018 [23: 0] pd: u32,
        0x01c [31:16] lwm: u16,
        0x01c [15: 0] wqe_cnt: u16,
        0x028 [63: 0] dbr_addr: u64,
    }

    /// XRC shared receive queue context.
    pub struct XrcSrqContext: 0x40 {
        0x000 [31:28] state: u8,
        0x000 [27:24] log_xrc_srq_size: u8,
        0x004 [31:31] wq_signature: bool,
        0x004 [30:30] cont_srq: bool,
        0x004 [28:28] rlky: bool,
        0x004 [27:27] basic_cyclic_rcv_wqe: bool,
        0x004 [26:24] log_rq_stride: u8,
        0x004 [23: 0] xrcd: u32,
        0x008 [31:26] page_offset: u8,
        0x008 [24:24] dbr_umem_valid: bool,
        0x008 [23: 0] cqn: u32,
        0x010 [31:31] user_index_equal_xrc_srqn: bool,
        0x010 [29:24] log_page_size: u8,
        0x010 [23: 0] user_index: u32,
        0x018 [23: 0] pd: u32,
        0x01c [31:16] lwm: u16,
        0x01c [15: 0] wqe_cnt: u16,
        0x028 [31: 0] db_record_addr_h: u32,
        0x02c [31: 2] db_record_addr_l: u32,
    }

    /// Receive memory pool context, which SRQs are based on under ISSI 1.
    pub struct RmpContext: 0xf0 {
        0x000 [23:20] state: u8,
        0x004 [31:31] basic_cyclic_rcv_wqe: bool,
        0x030         wq: WorkQueue,
    }
}
