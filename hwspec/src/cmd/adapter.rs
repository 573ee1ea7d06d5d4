//! Initialization, capabilities, pages and identification.
use crate::hw_layout;

hw_layout! {
    /// `QUERY_HCA_CAP` input.
    pub struct QueryHcaCapIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] other_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

hw_layout! {
    /// `QUERY_HCA_CAP` output.
    pub struct QueryHcaCapOut: 0x1010 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x010         capability: [u8; 0x1000],
    }
}

hw_layout! {
    /// `SET_HCA_CAP` input.
    pub struct SetHcaCapIn: 0x1010 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] other_function: bool,
        0x008 [15: 0] function_id: u16,
        0x010         capability: [u8; 0x1000],
    }
}

hw_layout! {
    /// `SET_HCA_CAP` output.
    pub struct SetHcaCapOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `INIT_HCA` input.
    pub struct InitHcaIn: 0x20 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x00c [29:16] sw_vhca_id: u16,
        0x010         sw_owner_id: [u8; 0x10],
    }
}

hw_layout! {
    /// `INIT_HCA` output.
    pub struct InitHcaOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `TEARDOWN_HCA` input.
    pub struct TeardownHcaIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [15: 0] profile: u16,
    }
}

hw_layout! {
    /// `TEARDOWN_HCA` output.
    pub struct TeardownHcaOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x00c [ 0: 0] state: bool,
    }
}

hw_layout! {
    /// `ENABLE_HCA` input.
    pub struct EnableHcaIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

hw_layout! {
    /// `ENABLE_HCA` output.
    pub struct EnableHcaOut: 0xc {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `DISABLE_HCA` input.
    pub struct DisableHcaIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

hw_layout! {
    /// `DISABLE_HCA` output.
    pub struct DisableHcaOut: 0xc {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_PAGES` input.
    pub struct QueryPagesIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

hw_layout! {
    /// `QUERY_PAGES` output.
    pub struct QueryPagesOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
        0x00c [31: 0] num_pages: u32,
    }
}

hw_layout! {
    /// `MANAGE_PAGES` input.
    pub struct ManagePagesIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
        0x00c [31: 0] input_num_entries: u32,
    }
}

hw_layout! {
    /// `MANAGE_PAGES` output.
    pub struct ManagePagesOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [31: 0] output_num_entries: u32,
    }
}

hw_layout! {
    /// `QUERY_ISSI` input.
    pub struct QueryIssiIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
    }
}

hw_layout! {
    /// `QUERY_ISSI` output.
    pub struct QueryIssiOut: 0x70 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [15: 0] current_issi: u16,
        0x06c [31: 0] supported_issi_dw0: u32,
    }
}

hw_layout! {
    /// `SET_ISSI` input.
    pub struct SetIssiIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [15: 0] current_issi: u16,
    }
}

hw_layout! {
    /// `SET_ISSI` output.
    pub struct SetIssiOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `SET_DRIVER_VERSION` input.
    pub struct SetDriverVersionIn: 0x50 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x010         driver_version: [u8; 0x40],
    }
}

hw_layout! {
    /// `SET_DRIVER_VERSION` output.
    pub struct SetDriverVersionOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `QUERY_SPECIAL_CONTEXTS` input.
    pub struct QuerySpecialContextsIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
    }
}

hw_layout! {
    /// `QUERY_SPECIAL_CONTEXTS` output.
    pub struct QuerySpecialContextsOut: 0x20 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        0x008 [31: 0] dump_fill_mkey: u32,
        0x00c [31: 0] resd_lkey: u32,
        0x010 [31: 0] null_mkey: u32,
    }
}

hw_layout! {
    /// `NOP` input.
    pub struct NopIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
    }
}

hw_layout! {
    /// `NOP` output.
    pub struct NopOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `ACCESS_REGISTER` input.
    pub struct AccessRegisterIn: 0x10 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [15: 0] register_id: u16,
        0x00c [31: 0] argument: u32,
    }
}

hw_layout! {
    /// `ACCESS_REGISTER` output.
    pub struct AccessRegisterOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
