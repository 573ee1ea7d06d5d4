//! Completion queue commands.
use super::{CmdOut, Page};
use crate::context::cq::CqContext;

/// `op_mod` of `MODIFY_CQ`: changes single fields, as selected by `modify_field_select`.
pub const FIELDS: u16 = 0;
/// `modify_field_select`: `cq_period`.
pub const PERIOD: u32 = 1 << 0;
/// `modify_field_select`: `cq_max_count`.
pub const COUNT: u32 = 1 << 1;
/// `op_mod` of `MODIFY_CQ`: changes the memory, as selected by `resize_field_select`.
pub const RESIZE: u16 = 1;
/// `resize_field_select`: size, page offset and page size.
pub const RESIZE_FIELDS: u32 = 0b111;

commands! {
    0x400 CreateCq
        in CreateCqIn: 0x110, uid {
            0x010         cq_context: CqContext,
            0x050 [63: 0] cq_umem_offset: u64,
            0x058 [31: 0] cq_umem_id: u32,
            0x05c [31:31] cq_umem_valid: bool,
        } then pas: [Page]
        out CreateCqOut: 0x10 { 0x008 [23: 0] cqn: u32 }

    0x402 QueryCq
        in QueryCqIn: 0x10, uid { 0x008 [23: 0] cqn: u32 }
        out QueryCqOut: 0x110 { 0x010 cq_context: CqContext } then pas: [Page]

    0x403 ModifyCq
        in ModifyCqIn: 0x110, uid {
            0x008 [23: 0] cqn: u32,
            0x00c         modify_field_select_resize_field_select: [u8; 0x4],
            0x010         cq_context: CqContext,
            0x05c [31:31] cq_umem_valid: bool,
        } then pas: [Page]
        out CmdOut

    0x401 DestroyCq in DestroyCqIn: 0x10, uid { 0x008 [23: 0] cqn: u32 } out CmdOut
}
