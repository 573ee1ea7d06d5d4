//! Memory key commands.
use crate::context::mkey::MkeyContext;

cmd_in! {
    /// `CREATE_MKEY` input.
    pub struct CreateMkeyIn: 0x110, uid {
        0x00c [31:31] pg_access: bool,
        0x00c [30:30] mkey_umem_valid: bool,
        0x010         memory_key_mkey_entry: MkeyContext,
        0x060 [31: 0] translations_octword_actual_size: u32,
    }
}

cmd_out! {
    /// `CREATE_MKEY` output.
    pub struct CreateMkeyOut: 0x10 {
        0x008 [23: 0] mkey_index: u32,
    }
}

cmd_in! {
    /// `QUERY_MKEY` input.
    pub struct QueryMkeyIn: 0x10, uid {
        0x008 [23: 0] mkey_index: u32,
        0x00c [31:31] pg_access: bool,
    }
}

cmd_out! {
    /// `QUERY_MKEY` output.
    pub struct QueryMkeyOut: 0x130 {
        0x010         memory_key_mkey_entry: MkeyContext,
        0x110         bsf0_klm0_pas_mtt0_1: [u8; 0x10],
        0x120         bsf1_klm1_pas_mtt2_3: [u8; 0x10],
    }
}

cmd_in! {
    /// `DESTROY_MKEY` input.
    pub struct DestroyMkeyIn: 0x10, uid {
        0x008 [23: 0] mkey_index: u32,
    }
}

cmd_out! {
    /// `DESTROY_MKEY` output.
    pub struct DestroyMkeyOut: 0x10 {}
}
