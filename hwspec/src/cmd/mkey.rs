//! Memory key commands.
use crate::context::mkey::MkeyContext;
use crate::hw_layout;

hw_layout! {
    /// `CREATE_MKEY` input.
    pub struct CreateMkeyIn: 0x110 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x00c [31:31] pg_access: bool,
        0x00c [30:30] mkey_umem_valid: bool,
        0x010         memory_key_mkey_entry: MkeyContext,
        0x060 [31: 0] translations_octword_actual_size: u32,
    }
}

hw_layout! {
    /// `CREATE_MKEY` output.
    pub struct CreateMkeyOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [23: 0] mkey_index: u32,
    }
}

hw_layout! {
    /// `QUERY_MKEY` input.
    pub struct QueryMkeyIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] mkey_index: u32,
        0x00c [31:31] pg_access: bool,
    }
}

hw_layout! {
    /// `QUERY_MKEY` output.
    pub struct QueryMkeyOut: 0x130 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         memory_key_mkey_entry: MkeyContext,
        0x110         bsf0_klm0_pas_mtt0_1: [u8; 0x10],
        0x120         bsf1_klm1_pas_mtt2_3: [u8; 0x10],
    }
}

hw_layout! {
    /// `DESTROY_MKEY` input.
    pub struct DestroyMkeyIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] mkey_index: u32,
    }
}

hw_layout! {
    /// `DESTROY_MKEY` output.
    pub struct DestroyMkeyOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
