//! Shared receive queue commands.
use crate::context::srq::{RmpContext, SrqContext, XrcSrqContext};

cmd_in! {
    /// `CREATE_SRQ` input.
    pub struct CreateSrqIn: 0x110, uid {
        0x010         srq_context_entry: SrqContext,
    }
}

cmd_out! {
    /// `CREATE_SRQ` output.
    pub struct CreateSrqOut: 0x10 {
        0x008 [23: 0] srqn: u32,
    }
}

cmd_in! {
    /// `QUERY_SRQ` input.
    pub struct QuerySrqIn: 0x10, uid {
        0x008 [23: 0] srqn: u32,
    }
}

cmd_out! {
    /// `QUERY_SRQ` output.
    pub struct QuerySrqOut: 0x110 {
        0x010         srq_context_entry: SrqContext,
    }
}

cmd_in! {
    /// `DESTROY_SRQ` input.
    pub struct DestroySrqIn: 0x10, uid {
        0x008 [23: 0] srqn: u32,
    }
}

cmd_out! {
    /// `DESTROY_SRQ` output.
    pub struct DestroySrqOut: 0x10 {}
}

cmd_in! {
    /// `ARM_RQ` input.
    pub struct ArmRqIn: 0x10, uid {
        0x008 [23: 0] srq_number: u32,
        0x00c [15: 0] lwm: u16,
    }
}

cmd_out! {
    /// `ARM_RQ` output.
    pub struct ArmRqOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_XRC_SRQ` input.
    pub struct CreateXrcSrqIn: 0x110, uid {
        0x010         xrc_srq_context_entry: XrcSrqContext,
        0x05c [31:31] xrc_srq_umem_valid: bool,
    }
}

cmd_out! {
    /// `CREATE_XRC_SRQ` output.
    pub struct CreateXrcSrqOut: 0x10 {
        0x008 [23: 0] xrc_srqn: u32,
    }
}

cmd_in! {
    /// `QUERY_XRC_SRQ` input.
    pub struct QueryXrcSrqIn: 0x10, uid {
        0x008 [23: 0] xrc_srqn: u32,
    }
}

cmd_out! {
    /// `QUERY_XRC_SRQ` output.
    pub struct QueryXrcSrqOut: 0x110 {
        0x010         xrc_srq_context_entry: XrcSrqContext,
    }
}

cmd_in! {
    /// `DESTROY_XRC_SRQ` input.
    pub struct DestroyXrcSrqIn: 0x10, uid {
        0x008 [23: 0] xrc_srqn: u32,
    }
}

cmd_out! {
    /// `DESTROY_XRC_SRQ` output.
    pub struct DestroyXrcSrqOut: 0x10 {}
}

cmd_in! {
    /// `ARM_XRC_SRQ` input.
    pub struct ArmXrcSrqIn: 0x10, uid {
        0x008 [23: 0] xrc_srqn: u32,
        0x00c [15: 0] lwm: u16,
    }
}

cmd_out! {
    /// `ARM_XRC_SRQ` output.
    pub struct ArmXrcSrqOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_RMP` input.
    pub struct CreateRmpIn: 0x110, uid {
        0x020         ctx: RmpContext,
    }
}

cmd_out! {
    /// `CREATE_RMP` output.
    pub struct CreateRmpOut: 0x10 {
        0x008 [23: 0] rmpn: u32,
    }
}

cmd_in! {
    /// `MODIFY_RMP` input.
    pub struct ModifyRmpIn: 0x110, uid {
        0x008 [31:28] rmp_state: u8,
        0x008 [23: 0] rmpn: u32,
        0x010         bitmask: [u8; 0x8],
        0x020         ctx: RmpContext,
    }
}

cmd_out! {
    /// `MODIFY_RMP` output.
    pub struct ModifyRmpOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_RMP` input.
    pub struct QueryRmpIn: 0x10, uid {
        0x008 [23: 0] rmpn: u32,
    }
}

cmd_out! {
    /// `QUERY_RMP` output.
    pub struct QueryRmpOut: 0x110 {
        0x020         rmp_context: RmpContext,
    }
}

cmd_in! {
    /// `DESTROY_RMP` input.
    pub struct DestroyRmpIn: 0x10, uid {
        0x008 [23: 0] rmpn: u32,
    }
}

cmd_out! {
    /// `DESTROY_RMP` output.
    pub struct DestroyRmpOut: 0x10 {}
}
