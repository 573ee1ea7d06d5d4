//! Event queue commands.
use crate::context::eq::EqContext;
use crate::hw_layout;

hw_layout! {
    /// `CREATE_EQ` input.
    pub struct CreateEqIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x010         eq_context_entry: EqContext,
        0x058         event_bitmask: [u8; 0x20],
    }
}

hw_layout! {
    /// `CREATE_EQ` output.
    pub struct CreateEqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [ 7: 0] eq_number: u8,
    }
}

hw_layout! {
    /// `QUERY_EQ` input.
    pub struct QueryEqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [ 7: 0] eq_number: u8,
    }
}

hw_layout! {
    /// `QUERY_EQ` output.
    pub struct QueryEqOut: 0x110 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         eq_context_entry: EqContext,
        0x058 [63: 0] event_bitmask: u64,
    }
}

hw_layout! {
    /// `DESTROY_EQ` input.
    pub struct DestroyEqIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [ 7: 0] eq_number: u8,
    }
}

hw_layout! {
    /// `DESTROY_EQ` output.
    pub struct DestroyEqOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
