//! Initialization, capabilities, pages and identification.

cmd_in! {
    /// `QUERY_HCA_CAP` input.
    pub struct QueryHcaCapIn: 0x10, uid {
        0x008 [31:31] other_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

cmd_out! {
    /// `QUERY_HCA_CAP` output.
    pub struct QueryHcaCapOut: 0x1010 {
        0x010         capability: [u8; 0x1000],
    }
}

cmd_in! {
    /// `SET_HCA_CAP` input.
    pub struct SetHcaCapIn: 0x1010 {
        0x008 [31:31] other_function: bool,
        0x008 [15: 0] function_id: u16,
        0x010         capability: [u8; 0x1000],
    }
}

cmd_out! {
    /// `SET_HCA_CAP` output.
    pub struct SetHcaCapOut: 0x10 {}
}

cmd_in! {
    /// `INIT_HCA` input.
    pub struct InitHcaIn: 0x20 {
        0x00c [29:16] sw_vhca_id: u16,
        0x010         sw_owner_id: [u8; 0x10],
    }
}

cmd_out! {
    /// `INIT_HCA` output.
    pub struct InitHcaOut: 0x10 {}
}

cmd_in! {
    /// `TEARDOWN_HCA` input.
    pub struct TeardownHcaIn: 0x10 {
        0x008 [15: 0] profile: u16,
    }
}

cmd_out! {
    /// `TEARDOWN_HCA` output.
    pub struct TeardownHcaOut: 0x10 {
        0x00c [ 0: 0] state: bool,
    }
}

cmd_in! {
    /// `ENABLE_HCA` input.
    pub struct EnableHcaIn: 0x10 {
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

cmd_out! {
    /// `ENABLE_HCA` output.
    pub struct EnableHcaOut: 0xc {}
}

cmd_in! {
    /// `DISABLE_HCA` input.
    pub struct DisableHcaIn: 0x10 {
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

cmd_out! {
    /// `DISABLE_HCA` output.
    pub struct DisableHcaOut: 0xc {}
}

cmd_in! {
    /// `QUERY_PAGES` input.
    pub struct QueryPagesIn: 0x10 {
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
    }
}

cmd_out! {
    /// `QUERY_PAGES` output.
    pub struct QueryPagesOut: 0x10 {
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
        0x00c [31: 0] num_pages: u32,
    }
}

cmd_in! {
    /// `MANAGE_PAGES` input.
    pub struct ManagePagesIn: 0x10 {
        0x008 [31:31] embedded_cpu_function: bool,
        0x008 [15: 0] function_id: u16,
        0x00c [31: 0] input_num_entries: u32,
    }
}

cmd_out! {
    /// `MANAGE_PAGES` output.
    pub struct ManagePagesOut: 0x10 {
        0x008 [31: 0] output_num_entries: u32,
    }
}

cmd_in! {
    /// `QUERY_ISSI` input.
    pub struct QueryIssiIn: 0x10, uid {}
}

cmd_out! {
    /// `QUERY_ISSI` output.
    pub struct QueryIssiOut: 0x70 {
        0x008 [15: 0] current_issi: u16,
        0x06c [31: 0] supported_issi_dw0: u32,
    }
}

cmd_in! {
    /// `SET_ISSI` input.
    pub struct SetIssiIn: 0x10 {
        0x008 [15: 0] current_issi: u16,
    }
}

cmd_out! {
    /// `SET_ISSI` output.
    pub struct SetIssiOut: 0x10 {}
}

cmd_in! {
    /// `SET_DRIVER_VERSION` input.
    pub struct SetDriverVersionIn: 0x50 {
        0x010         driver_version: [u8; 0x40],
    }
}

cmd_out! {
    /// `SET_DRIVER_VERSION` output.
    pub struct SetDriverVersionOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_SPECIAL_CONTEXTS` input.
    pub struct QuerySpecialContextsIn: 0x10 {}
}

cmd_out! {
    /// `QUERY_SPECIAL_CONTEXTS` output.
    pub struct QuerySpecialContextsOut: 0x20 {
        0x008 [31: 0] dump_fill_mkey: u32,
        0x00c [31: 0] resd_lkey: u32,
        0x010 [31: 0] null_mkey: u32,
    }
}

cmd_in! {
    /// `NOP` input.
    pub struct NopIn: 0x10, uid {}
}

cmd_out! {
    /// `NOP` output.
    pub struct NopOut: 0x10 {}
}

cmd_in! {
    /// `ACCESS_REGISTER` input.
    pub struct AccessRegisterIn: 0x10 {
        0x008 [15: 0] register_id: u16,
        0x00c [31: 0] argument: u32,
    }
}

cmd_out! {
    /// `ACCESS_REGISTER` output.
    pub struct AccessRegisterOut: 0x10 {}
}
