//! Completion queue commands.
use super::{CmdOut, Page};
use crate::context::cq::CqContext;

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
