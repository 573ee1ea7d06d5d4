//! Commands of the e-switch manager.
use crate::context::{
    eswitch::{EswVportContext, EswVportFields, HostParams, SchedulingContext},
    vport::MacAddressLayout,
};

cmd_in! {
    /// `QUERY_ESW_FUNCTIONS` input.
    pub struct QueryEswFunctionsIn: 0x10 {}
}

cmd_out! {
    /// `QUERY_ESW_FUNCTIONS` output.
    pub struct QueryEswFunctionsOut: 0x80 {
        0x010         host_params_context: HostParams,
    }
}

cmd_in! {
    /// `QUERY_ESW_VPORT_CONTEXT` input.
    pub struct QueryEswVportContextIn: 0x10, uid {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
    }
}

cmd_out! {
    /// `QUERY_ESW_VPORT_CONTEXT` output.
    pub struct QueryEswVportContextOut: 0x110 {
        0x010         esw_vport_context: EswVportContext,
    }
}

cmd_in! {
    /// `MODIFY_ESW_VPORT_CONTEXT` input.
    pub struct ModifyEswVportContextIn: 0x110 {
        0x008 [31:31] other_vport: bool,
        0x008 [15: 0] vport_number: u16,
        0x00c         field_select: EswVportFields,
        0x010         esw_vport_context: EswVportContext,
    }
}

cmd_out! {
    /// `MODIFY_ESW_VPORT_CONTEXT` output.
    pub struct ModifyEswVportContextOut: 0x10 {}
}

cmd_in! {
    /// `SET_L2_TABLE_ENTRY` input.
    pub struct SetL2TableEntryIn: 0x40, uid {
        0x014 [23: 0] table_index: u32,
        0x01c [12:12] vlan_valid: bool,
        0x01c [11: 0] vlan: u16,
        0x020         mac_address: MacAddressLayout,
    }
}

cmd_out! {
    /// `SET_L2_TABLE_ENTRY` output.
    pub struct SetL2TableEntryOut: 0x10 {}
}

cmd_in! {
    /// `QUERY_L2_TABLE_ENTRY` input.
    pub struct QueryL2TableEntryIn: 0x40, uid {
        0x014 [23: 0] table_index: u32,
    }
}

cmd_out! {
    /// `QUERY_L2_TABLE_ENTRY` output.
    pub struct QueryL2TableEntryOut: 0x40 {
        0x01c [12:12] vlan_valid: bool,
        0x01c [11: 0] vlan: u16,
        0x020         mac_address: MacAddressLayout,
    }
}

cmd_in! {
    /// `DELETE_L2_TABLE_ENTRY` input.
    pub struct DeleteL2TableEntryIn: 0x40, uid {
        0x014 [23: 0] table_index: u32,
    }
}

cmd_out! {
    /// `DELETE_L2_TABLE_ENTRY` output.
    pub struct DeleteL2TableEntryOut: 0x10 {}
}

cmd_in! {
    /// `CREATE_SCHEDULING_ELEMENT` input.
    pub struct CreateSchedulingElementIn: 0x80, uid {
        0x008 [31:24] scheduling_hierarchy: u8,
        0x020         scheduling_context: SchedulingContext,
    }
}

cmd_out! {
    /// `CREATE_SCHEDULING_ELEMENT` output.
    pub struct CreateSchedulingElementOut: 0x40 {
        0x010 [31: 0] scheduling_element_id: u32,
    }
}

cmd_in! {
    /// `MODIFY_SCHEDULING_ELEMENT` input.
    pub struct ModifySchedulingElementIn: 0x80, uid {
        0x008 [31:24] scheduling_hierarchy: u8,
        0x00c [31: 0] scheduling_element_id: u32,
        0x014 [31: 0] modify_bitmask: u32,
        0x020         scheduling_context: SchedulingContext,
    }
}

cmd_out! {
    /// `MODIFY_SCHEDULING_ELEMENT` output.
    pub struct ModifySchedulingElementOut: 0x40 {}
}

cmd_in! {
    /// `QUERY_SCHEDULING_ELEMENT` input.
    pub struct QuerySchedulingElementIn: 0x40, uid {
        0x008 [31:24] scheduling_hierarchy: u8,
        0x00c [31: 0] scheduling_element_id: u32,
    }
}

cmd_out! {
    /// `QUERY_SCHEDULING_ELEMENT` output.
    pub struct QuerySchedulingElementOut: 0x80 {
        0x020         scheduling_context: SchedulingContext,
    }
}

cmd_in! {
    /// `DESTROY_SCHEDULING_ELEMENT` input.
    pub struct DestroySchedulingElementIn: 0x40, uid {
        0x008 [31:24] scheduling_hierarchy: u8,
        0x00c [31: 0] scheduling_element_id: u32,
    }
}

cmd_out! {
    /// `DESTROY_SCHEDULING_ELEMENT` output.
    pub struct DestroySchedulingElementOut: 0x40 {}
}
