//! Completion queue commands.
use crate::context::cq::CqContext;

cmd_in! {
    /// `CREATE_CQ` input.
    pub struct CreateCqIn: 0x110, uid {
        0x010         cq_context: CqContext,
        0x050 [63: 0] cq_umem_offset: u64,
        0x058 [31: 0] cq_umem_id: u32,
        0x05c [31:31] cq_umem_valid: bool,
    }
}

cmd_out! {
    /// `CREATE_CQ` output.
    pub struct CreateCqOut: 0x10 {
        0x008 [23: 0] cqn: u32,
    }
}

cmd_in! {
    /// `QUERY_CQ` input.
    pub struct QueryCqIn: 0x10, uid {
        0x008 [23: 0] cqn: u32,
    }
}

cmd_out! {
    /// `QUERY_CQ` output.
    pub struct QueryCqOut: 0x110 {
        0x010         cq_context: CqContext,
    }
}

cmd_in! {
    /// `MODIFY_CQ` input.
    pub struct ModifyCqIn: 0x110, uid {
        0x008 [23: 0] cqn: u32,
        0x00c         modify_field_select_resize_field_select: [u8; 0x4],
        0x010         cq_context: CqContext,
        0x05c [31:31] cq_umem_valid: bool,
    }
}

cmd_out! {
    /// `MODIFY_CQ` output.
    pub struct ModifyCqOut: 0x10 {}
}

cmd_in! {
    /// `DESTROY_CQ` input.
    pub struct DestroyCqIn: 0x10, uid {
        0x008 [23: 0] cqn: u32,
    }
}

cmd_out! {
    /// `DESTROY_CQ` output.
    pub struct DestroyCqOut: 0x10 {}
}
