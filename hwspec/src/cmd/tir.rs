//! Commands of transport interfaces and receive queue tables.
use crate::context::tir::{RqtContext, TirContext, TisContext};

cmd_in! {
    /// `CREATE_TIS` input.
    pub struct CreateTisIn: 0xc0, uid {
        0x020         ctx: TisContext,
    }
}

cmd_out! {
    /// `CREATE_TIS` output.
    pub struct CreateTisOut: 0x10 {
        0x008 [23: 0] tisn: u32,
    }
}

cmd_in! {
    /// `MODIFY_TIS` input.
    pub struct ModifyTisIn: 0xc0, uid {
        0x008 [23: 0] tisn: u32,
        0x010 [63: 0] bitmask: u64,
        0x020         ctx: TisContext,
    }
}

cmd_out! {
    /// `MODIFY_TIS` output.
    pub struct ModifyTisOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_TIS` input.
    pub struct QueryTisIn: 0x10, uid {
        0x008 [23: 0] tisn: u32,
    }
}

cmd_out! {
    /// `QUERY_TIS` output.
    pub struct QueryTisOut: 0xb0 {
        0x010         tis_context: TisContext,
    }
}

cmd_in! {
    /// `DESTROY_TIS` input.
    pub struct DestroyTisIn: 0x10, uid {
        0x008 [23: 0] tisn: u32,
    }
}

cmd_out! {
    /// `DESTROY_TIS` output.
    pub struct DestroyTisOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_TIR` input.
    pub struct CreateTirIn: 0x110, uid {
        0x020         ctx: TirContext,
    }
}

cmd_out! {
    /// `CREATE_TIR` output.
    pub struct CreateTirOut: 0x10 {
        0x000 [23: 0] icm_address_63_40: u32,
        0x008 [31:24] icm_address_39_32: u8,
        0x008 [23: 0] tirn: u32,
        0x00c [31: 0] icm_address_31_0: u32,
    }
}

cmd_in! {
    /// `MODIFY_TIR` input.
    pub struct ModifyTirIn: 0x110, uid {
        0x008 [23: 0] tirn: u32,
        0x010 [63: 0] bitmask: u64,
        0x020         ctx: TirContext,
    }
}

cmd_out! {
    /// `MODIFY_TIR` output.
    pub struct ModifyTirOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_TIR` input.
    pub struct QueryTirIn: 0x10, uid {
        0x008 [23: 0] tirn: u32,
    }
}

cmd_out! {
    /// `QUERY_TIR` output.
    pub struct QueryTirOut: 0x110 {
        0x020         tir_context: TirContext,
    }
}

cmd_in! {
    /// `DESTROY_TIR` input.
    pub struct DestroyTirIn: 0x10, uid {
        0x008 [23: 0] tirn: u32,
    }
}

cmd_out! {
    /// `DESTROY_TIR` output.
    pub struct DestroyTirOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_RQT` input.
    pub struct CreateRqtIn: 0x110, uid {
        0x020         rqt_context: RqtContext,
    }
}

cmd_out! {
    /// `CREATE_RQT` output.
    pub struct CreateRqtOut: 0x10 {
        0x008 [23: 0] rqtn: u32,
    }
}

cmd_in! {
    /// `MODIFY_RQT` input.
    pub struct ModifyRqtIn: 0x110, uid {
        0x008 [23: 0] rqtn: u32,
        0x010 [63: 0] bitmask: u64,
        0x020         ctx: RqtContext,
    }
}

cmd_out! {
    /// `MODIFY_RQT` output.
    pub struct ModifyRqtOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_RQT` input.
    pub struct QueryRqtIn: 0x10, uid {
        0x008 [23: 0] rqtn: u32,
    }
}

cmd_out! {
    /// `QUERY_RQT` output.
    pub struct QueryRqtOut: 0x110 {
        0x020         rqt_context: RqtContext,
    }
}

cmd_in! {
    /// `DESTROY_RQT` input.
    pub struct DestroyRqtIn: 0x10, uid {
        0x008 [23: 0] rqtn: u32,
    }
}

cmd_out! {
    /// `DESTROY_RQT` output.
    pub struct DestroyRqtOut: 0x10 {}
}
