//! Event queue commands.
use crate::context::eq::EqContext;

cmd_in! {
    /// `CREATE_EQ` input.
    pub struct CreateEqIn: 0x110, uid {
        0x010         eq_context_entry: EqContext,
        0x058         event_bitmask: [u8; 0x20],
    }
}

cmd_out! {
    /// `CREATE_EQ` output.
    pub struct CreateEqOut: 0x10 {
        0x008 [ 7: 0] eq_number: u8,
    }
}

cmd_in! {
    /// `QUERY_EQ` input.
    pub struct QueryEqIn: 0x10 {
        0x008 [ 7: 0] eq_number: u8,
    }
}

cmd_out! {
    /// `QUERY_EQ` output.
    pub struct QueryEqOut: 0x110 {
        0x010         eq_context_entry: EqContext,
        0x058 [63: 0] event_bitmask: u64,
    }
}

cmd_in! {
    /// `DESTROY_EQ` input.
    pub struct DestroyEqIn: 0x10 {
        0x008 [ 7: 0] eq_number: u8,
    }
}

cmd_out! {
    /// `DESTROY_EQ` output.
    pub struct DestroyEqOut: 0x10 {}
}
