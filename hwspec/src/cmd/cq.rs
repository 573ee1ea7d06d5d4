//! Completion queue commands.
use crate::context::cq::CqContext;
use crate::hw_layout;

hw_layout! {
    /// `CREATE_CQ` input.
    pub struct CreateCqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x010         cq_context: CqContext,
        0x050 [63: 0] cq_umem_offset: u64,
        0x058 [31: 0] cq_umem_id: u32,
        0x05c [31:31] cq_umem_valid: bool,
    }
}

hw_layout! {
    /// `CREATE_CQ` output.
    pub struct CreateCqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] cqn: u32,
    }
}

hw_layout! {
    /// `QUERY_CQ` input.
    pub struct QueryCqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] cqn: u32,
    }
}

hw_layout! {
    /// `QUERY_CQ` output.
    pub struct QueryCqOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         cq_context: CqContext,
    }
}

hw_layout! {
    /// `MODIFY_CQ` input.
    pub struct ModifyCqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] cqn: u32,
        0x00c         modify_field_select_resize_field_select: [u8; 0x4],
        0x010         cq_context: CqContext,
        0x05c [31:31] cq_umem_valid: bool,
    }
}

hw_layout! {
    /// `MODIFY_CQ` output.
    pub struct ModifyCqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `DESTROY_CQ` input.
    pub struct DestroyCqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] cqn: u32,
    }
}

hw_layout! {
    /// `DESTROY_CQ` output.
    pub struct DestroyCqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
