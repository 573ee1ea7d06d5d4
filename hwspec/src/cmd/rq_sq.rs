//! Commands of send and receive queues that belong to no queue pair.
use crate::context::rq_sq::{RqContext, SqContext};

cmd_in! {
    /// `CREATE_SQ` input.
    pub struct CreateSqIn: 0x110, uid {
        0x020         ctx: SqContext,
    }
}

cmd_out! {
    /// `CREATE_SQ` output.
    pub struct CreateSqOut: 0x10 {
        0x008 [23: 0] sqn: u32,
    }
}

cmd_in! {
    /// `MODIFY_SQ` input.
    pub struct ModifySqIn: 0x110, uid {
        0x008 [31:28] sq_state: u8,
        0x008 [23: 0] sqn: u32,
        0x010 [63: 0] modify_bitmask: u64,
        0x020         ctx: SqContext,
    }
}

cmd_out! {
    /// `MODIFY_SQ` output.
    pub struct ModifySqOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_SQ` input.
    pub struct QuerySqIn: 0x10, uid {
        0x008 [23: 0] sqn: u32,
    }
}

cmd_out! {
    /// `QUERY_SQ` output.
    pub struct QuerySqOut: 0x110 {
        0x020         sq_context: SqContext,
    }
}

cmd_in! {
    /// `DESTROY_SQ` input.
    pub struct DestroySqIn: 0x10, uid {
        0x008 [23: 0] sqn: u32,
    }
}

cmd_out! {
    /// `DESTROY_SQ` output.
    pub struct DestroySqOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_RQ` input.
    pub struct CreateRqIn: 0x110, uid {
        0x020         ctx: RqContext,
    }
}

cmd_out! {
    /// `CREATE_RQ` output.
    pub struct CreateRqOut: 0x10 {
        0x008 [23: 0] rqn: u32,
    }
}

cmd_in! {
    /// `MODIFY_RQ` input.
    pub struct ModifyRqIn: 0x110, uid {
        0x008 [31:28] rq_state: u8,
        0x008 [23: 0] rqn: u32,
        0x010 [63: 0] modify_bitmask: u64,
        0x020         ctx: RqContext,
    }
}

cmd_out! {
    /// `MODIFY_RQ` output.
    pub struct ModifyRqOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_RQ` input.
    pub struct QueryRqIn: 0x10, uid {
        0x008 [23: 0] rqn: u32,
    }
}

cmd_out! {
    /// `QUERY_RQ` output.
    pub struct QueryRqOut: 0x110 {
        0x020         rq_context: RqContext,
    }
}

cmd_in! {
    /// `DESTROY_RQ` input.
    pub struct DestroyRqIn: 0x10, uid {
        0x008 [23: 0] rqn: u32,
    }
}

cmd_out! {
    /// `DESTROY_RQ` output.
    pub struct DestroyRqOut: 0x10 {}
}
