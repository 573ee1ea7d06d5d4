//! Commands of send and receive queues that belong to no queue pair.
use crate::context::rq_sq::{RqContext, SqContext};
use crate::hw_layout;

hw_layout! {
    /// `CREATE_SQ` input.
    pub struct CreateSqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x020         ctx: SqContext,
    }
}

hw_layout! {
    /// `CREATE_SQ` output.
    pub struct CreateSqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] sqn: u32,
    }
}

hw_layout! {
    /// `MODIFY_SQ` input.
    pub struct ModifySqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:28] sq_state: u8,
        0x008 [23: 0] sqn: u32,
        0x010 [63: 0] modify_bitmask: u64,
        0x020         ctx: SqContext,
    }
}

hw_layout! {
    /// `MODIFY_SQ` output.
    pub struct ModifySqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_SQ` input.
    pub struct QuerySqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] sqn: u32,
    }
}

hw_layout! {
    /// `QUERY_SQ` output.
    pub struct QuerySqOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x020         sq_context: SqContext,
    }
}

hw_layout! {
    /// `DESTROY_SQ` input.
    pub struct DestroySqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] sqn: u32,
    }
}

hw_layout! {
    /// `DESTROY_SQ` output.
    pub struct DestroySqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `CREATE_RQ` input.
    pub struct CreateRqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x020         ctx: RqContext,
    }
}

hw_layout! {
    /// `CREATE_RQ` output.
    pub struct CreateRqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] rqn: u32,
    }
}

hw_layout! {
    /// `MODIFY_RQ` input.
    pub struct ModifyRqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:28] rq_state: u8,
        0x008 [23: 0] rqn: u32,
        0x010 [63: 0] modify_bitmask: u64,
        0x020         ctx: RqContext,
    }
}

hw_layout! {
    /// `MODIFY_RQ` output.
    pub struct ModifyRqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_RQ` input.
    pub struct QueryRqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rqn: u32,
    }
}

hw_layout! {
    /// `QUERY_RQ` output.
    pub struct QueryRqOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x020         rq_context: RqContext,
    }
}

hw_layout! {
    /// `DESTROY_RQ` input.
    pub struct DestroyRqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rqn: u32,
    }
}

hw_layout! {
    /// `DESTROY_RQ` output.
    pub struct DestroyRqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
