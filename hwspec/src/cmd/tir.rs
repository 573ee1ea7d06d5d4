//! Commands of transport interfaces and receive queue tables.
use crate::context::tir::{RqtContext, TirContext, TisContext};
use crate::hw_layout;

hw_layout! {
    /// `CREATE_TIS` input.
    pub struct CreateTisIn: 0xc0 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x020         ctx: TisContext,
    }
}

hw_layout! {
    /// `CREATE_TIS` output.
    pub struct CreateTisOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] tisn: u32,
    }
}

hw_layout! {
    /// `MODIFY_TIS` input.
    pub struct ModifyTisIn: 0xc0 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] tisn: u32,
        0x010 [63: 0] bitmask: u64,
        0x020         ctx: TisContext,
    }
}

hw_layout! {
    /// `MODIFY_TIS` output.
    pub struct ModifyTisOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_TIS` input.
    pub struct QueryTisIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] tisn: u32,
    }
}

hw_layout! {
    /// `QUERY_TIS` output.
    pub struct QueryTisOut: 0xb0 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         tis_context: TisContext,
    }
}

hw_layout! {
    /// `DESTROY_TIS` input.
    pub struct DestroyTisIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] tisn: u32,
    }
}

hw_layout! {
    /// `DESTROY_TIS` output.
    pub struct DestroyTisOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `CREATE_TIR` input.
    pub struct CreateTirIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x020         ctx: TirContext,
    }
}

hw_layout! {
    /// `CREATE_TIR` output.
    pub struct CreateTirOut: 0x10 {
        0x000 [31:24] status: u8,
        0x000 [23: 0] icm_address_63_40: u32,
        0x004 [31: 0] syndrome: u32,
        0x008 [31:24] icm_address_39_32: u8,
        0x008 [23: 0] tirn: u32,
        0x00c [31: 0] icm_address_31_0: u32,
    }
}

hw_layout! {
    /// `MODIFY_TIR` input.
    pub struct ModifyTirIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] tirn: u32,
        0x010 [63: 0] bitmask: u64,
        0x020         ctx: TirContext,
    }
}

hw_layout! {
    /// `MODIFY_TIR` output.
    pub struct ModifyTirOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_TIR` input.
    pub struct QueryTirIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] tirn: u32,
    }
}

hw_layout! {
    /// `QUERY_TIR` output.
    pub struct QueryTirOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x020         tir_context: TirContext,
    }
}

hw_layout! {
    /// `DESTROY_TIR` input.
    pub struct DestroyTirIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] tirn: u32,
    }
}

hw_layout! {
    /// `DESTROY_TIR` output.
    pub struct DestroyTirOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `CREATE_RQT` input.
    pub struct CreateRqtIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x020         rqt_context: RqtContext,
    }
}

hw_layout! {
    /// `CREATE_RQT` output.
    pub struct CreateRqtOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] rqtn: u32,
    }
}

hw_layout! {
    /// `MODIFY_RQT` input.
    pub struct ModifyRqtIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rqtn: u32,
        0x010 [63: 0] bitmask: u64,
        0x020         ctx: RqtContext,
    }
}

hw_layout! {
    /// `MODIFY_RQT` output.
    pub struct ModifyRqtOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_RQT` input.
    pub struct QueryRqtIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rqtn: u32,
    }
}

hw_layout! {
    /// `QUERY_RQT` output.
    pub struct QueryRqtOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x020         rqt_context: RqtContext,
    }
}

hw_layout! {
    /// `DESTROY_RQT` input.
    pub struct DestroyRqtIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] rqtn: u32,
    }
}

hw_layout! {
    /// `DESTROY_RQT` output.
    pub struct DestroyRqtOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
