//! Shared receive queue commands.
use crate::context::srq::{RmpContext, SrqContext, XrcSrqContext};
use crate::hw_layout;

hw_layout! {
    /// `CREATE_SRQ` input.
    pub struct CreateSrqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x010         srq_context_entry: SrqContext,
    }
}

hw_layout! {
    /// `CREATE_SRQ` output.
    pub struct CreateSrqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] srqn: u32,
    }
}

hw_layout! {
    /// `QUERY_SRQ` input.
    pub struct QuerySrqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] srqn: u32,
    }
}

hw_layout! {
    /// `QUERY_SRQ` output.
    pub struct QuerySrqOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         srq_context_entry: SrqContext,
    }
}

hw_layout! {
    /// `DESTROY_SRQ` input.
    pub struct DestroySrqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] srqn: u32,
    }
}

hw_layout! {
    /// `DESTROY_SRQ` output.
    pub struct DestroySrqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `ARM_RQ` input.
    pub struct ArmRqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] srq_number: u32,
        0x00c [15: 0] lwm: u16,
    }
}

hw_layout! {
    /// `ARM_RQ` output.
    pub struct ArmRqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `CREATE_XRC_SRQ` input.
    pub struct CreateXrcSrqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x010         xrc_srq_context_entry: XrcSrqContext,
        0x05c [31:31] xrc_srq_umem_valid: bool,
    }
}

hw_layout! {
    /// `CREATE_XRC_SRQ` output.
    pub struct CreateXrcSrqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] xrc_srqn: u32,
    }
}

hw_layout! {
    /// `QUERY_XRC_SRQ` input.
    pub struct QueryXrcSrqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] xrc_srqn: u32,
    }
}

hw_layout! {
    /// `QUERY_XRC_SRQ` output.
    pub struct QueryXrcSrqOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         xrc_srq_context_entry: XrcSrqContext,
    }
}

hw_layout! {
    /// `DESTROY_XRC_SRQ` input.
    pub struct DestroyXrcSrqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] xrc_srqn: u32,
    }
}

hw_layout! {
    /// `DESTROY_XRC_SRQ` output.
    pub struct DestroyXrcSrqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `ARM_XRC_SRQ` input.
    pub struct ArmXrcSrqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] xrc_srqn: u32,
        0x00c [15: 0] lwm: u16,
    }
}

hw_layout! {
    /// `ARM_XRC_SRQ` output.
    pub struct ArmXrcSrqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `CREATE_RMP` input.
    pub struct CreateRmpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x020         ctx: RmpContext,
    }
}

hw_layout! {
    /// `CREATE_RMP` output.
    pub struct CreateRmpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] rmpn: u32,
    }
}

hw_layout! {
    /// `MODIFY_RMP` input.
    pub struct ModifyRmpIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:28] rmp_state: u8,
        0x008 [23: 0] rmpn: u32,
        0x010         bitmask: [u8; 0x8],
        0x020         ctx: RmpContext,
    }
}

hw_layout! {
    /// `MODIFY_RMP` output.
    pub struct ModifyRmpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_RMP` input.
    pub struct QueryRmpIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rmpn: u32,
    }
}

hw_layout! {
    /// `QUERY_RMP` output.
    pub struct QueryRmpOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x020         rmp_context: RmpContext,
    }
}

hw_layout! {
    /// `DESTROY_RMP` input.
    pub struct DestroyRmpIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rmpn: u32,
    }
}

hw_layout! {
    /// `DESTROY_RMP` output.
    pub struct DestroyRmpOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
