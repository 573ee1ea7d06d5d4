//! Flow table commands.
use crate::context::flow::{FlowContext, FlowTableContext, MatchParam};

cmd_in! {
    /// `CREATE_FLOW_TABLE` input.
    pub struct CreateFlowTableIn: 0x40, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x018         flow_table_context: FlowTableContext,
    }
}

cmd_out! {
    /// `CREATE_FLOW_TABLE` output.
    pub struct CreateFlowTableOut: 0x10 {
        0x000 [23: 0] icm_address_63_40: u32,
        0x008 [31:24] icm_address_39_32: u8,
        0x008 [23: 0] table_id: u32,
        0x00c [31: 0] icm_address_31_0: u32,
    }
}

cmd_in! {
    /// `MODIFY_FLOW_TABLE` input.
    pub struct ModifyFlowTableIn: 0x40, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x00c [15: 0] modify_field_select: u16,
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
        0x018         flow_table_context: FlowTableContext,
    }
}

cmd_out! {
    /// `MODIFY_FLOW_TABLE` output.
    pub struct ModifyFlowTableOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_FLOW_TABLE` input.
    pub struct QueryFlowTableIn: 0x40, uid {
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
    }
}

cmd_out! {
    /// `QUERY_FLOW_TABLE` output.
    pub struct QueryFlowTableOut: 0x40 {
        0x018         flow_table_context: FlowTableContext,
    }
}

cmd_in! {
    /// `DESTROY_FLOW_TABLE` input.
    pub struct DestroyFlowTableIn: 0x40, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
    }
}

cmd_out! {
    /// `DESTROY_FLOW_TABLE` output.
    pub struct DestroyFlowTableOut: 0x10 {}
}

cmd_in! {
    /// `SET_FLOW_TABLE_ROOT` input.
    pub struct SetFlowTableRootIn: 0x40 {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x010 [16:16] table_of_other_vport: bool,
        0x010 [15: 0] table_vport_number: u16,
        0x014 [23: 0] table_id: u32,
        0x018 [23: 0] underlay_qpn: u32,
        0x01c [31:31] table_eswitch_owner_vhca_id_valid: bool,
        0x01c [15: 0] table_eswitch_owner_vhca_id: u16,
    }
}

cmd_out! {
    /// `SET_FLOW_TABLE_ROOT` output.
    pub struct SetFlowTableRootOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_FLOW_GROUP` input.
    pub struct CreateFlowGroupIn: 0x400, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x010 [19:16] group_type: u8,
        0x014 [23: 0] table_id: u32,
        0x018 [31:31] source_eswitch_owner_vhca_id_valid: bool,
        0x01c [31: 0] start_flow_index: u32,
        0x024 [31: 0] end_flow_index: u32,
        0x028 [15: 0] match_definer_id: u16,
        0x03c [ 7: 0] match_criteria_enable: u8,
        0x040         match_criteria: MatchParam,
    }
}

cmd_out! {
    /// `CREATE_FLOW_GROUP` output.
    pub struct CreateFlowGroupOut: 0x10 {
        0x008 [23: 0] group_id: u32,
    }
}

cmd_in! {
    /// `QUERY_FLOW_GROUP` input.
    pub struct QueryFlowGroupIn: 0x40, uid {
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
        0x018 [31: 0] group_id: u32,
    }
}

cmd_out! {
    /// `QUERY_FLOW_GROUP` output.
    pub struct QueryFlowGroupOut: 0x400 {
        0x01c [31: 0] start_flow_index: u32,
        0x024 [31: 0] end_flow_index: u32,
        0x03c [ 7: 0] match_criteria_enable: u8,
        0x040         match_criteria: MatchParam,
    }
}

cmd_in! {
    /// `DESTROY_FLOW_GROUP` input.
    pub struct DestroyFlowGroupIn: 0x40, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
        0x018 [31: 0] group_id: u32,
    }
}

cmd_out! {
    /// `DESTROY_FLOW_GROUP` output.
    pub struct DestroyFlowGroupOut: 0x10 {}
}

cmd_in! {
    /// `SET_FTE` input.
    pub struct SetFteIn: 0x340, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
        0x018 [31:31] ignore_flow_level: bool,
        0x018 [ 7: 0] modify_enable_mask: u8,
        0x020 [31: 0] flow_index: u32,
        0x040         flow_context: FlowContext,
    }
}

cmd_out! {
    /// `SET_FTE` output.
    pub struct SetFteOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_FTE` input.
    pub struct QueryFteIn: 0x40, uid {
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
        0x020 [31: 0] flow_index: u32,
    }
}

cmd_out! {
    /// `QUERY_FTE` output.
    pub struct QueryFteOut: 0x340 {
        0x040         flow_context: FlowContext,
    }
}

cmd_in! {
    /// `DELETE_FTE` input.
    pub struct DeleteFteIn: 0x40, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x010 [31:24] table_type: u8,
        0x014 [23: 0] table_id: u32,
        0x020 [31: 0] flow_index: u32,
    }
}

cmd_out! {
    /// `DELETE_FTE` output.
    pub struct DeleteFteOut: 0x10 {}
}

cmd_in! {
    /// `ALLOC_FLOW_COUNTER` input.
    pub struct AllocFlowCounterIn: 0x10, uid {
        0x00c [12: 8] flow_counter_bulk_log_size: u8,
        0x00c [ 7: 0] flow_counter_bulk: u8,
    }
}

cmd_out! {
    /// `ALLOC_FLOW_COUNTER` output.
    pub struct AllocFlowCounterOut: 0x10 {
        0x008 [31: 0] flow_counter_id: u32,
    }
}

cmd_in! {
    /// `QUERY_FLOW_COUNTER` input.
    pub struct QueryFlowCounterIn: 0x20, uid {
        0x018 [31:31] clear: bool,
        0x018 [15: 0] num_of_counters: u16,
        0x01c [31: 0] flow_counter_id: u32,
    }
}

cmd_out! {
    /// `QUERY_FLOW_COUNTER` output.
    pub struct QueryFlowCounterOut: 0x10 {}
}

cmd_in! {
    /// `DEALLOC_FLOW_COUNTER` input.
    pub struct DeallocFlowCounterIn: 0x10, uid {
        0x008 [31: 0] flow_counter_id: u32,
    }
}

cmd_out! {
    /// `DEALLOC_FLOW_COUNTER` output.
    pub struct DeallocFlowCounterOut: 0x10 {}
}
