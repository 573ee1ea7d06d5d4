//! Commands of the e-switch manager.
use super::CmdOut;
use crate::context::{
    eswitch::{EswVportContext, EswVportFields, HostParams, SchedulingContext},
    vport::MacAddressLayout,
};

commands! {
    0x740 QueryEswFunctions
        in QueryEswFunctionsIn: 0x10 {}
        out QueryEswFunctionsOut: 0x80 { 0x010 host_params_context: HostParams }

    0x752 QueryEswVportContext
        in QueryEswVportContextIn: 0x10, uid; other_vport vport_number {}
        out QueryEswVportContextOut: 0x110 { 0x010 esw_vport_context: EswVportContext }

    0x753 ModifyEswVportContext
        in ModifyEswVportContextIn: 0x110; other_vport vport_number {
            0x00c         field_select: EswVportFields,
            0x010         esw_vport_context: EswVportContext,
        }
        out CmdOut

    0x829 SetL2TableEntry
        in SetL2TableEntryIn: 0x40, uid {
            0x014 [23: 0] table_index: u32,
            0x01c [12:12] vlan_valid: bool,
            0x01c [11: 0] vlan: u16,
            0x020         mac_address: MacAddressLayout,
        }
        out CmdOut

    0x82a QueryL2TableEntry
        in QueryL2TableEntryIn: 0x40, uid { 0x014 [23: 0] table_index: u32 }
        out QueryL2TableEntryOut: 0x40 {
            0x01c [12:12] vlan_valid: bool,
            0x01c [11: 0] vlan: u16,
            0x020         mac_address: MacAddressLayout,
        }

    0x82b DeleteL2TableEntry in DeleteL2TableEntryIn: 0x40, uid { 0x014 [23: 0] table_index: u32 } out CmdOut

    0x782 CreateSchedulingElement
        in CreateSchedulingElementIn: 0x80, uid {
            0x008 [31:24] scheduling_hierarchy: u8,
            0x020         scheduling_context: SchedulingContext,
        }
        out CreateSchedulingElementOut: 0x40 { 0x010 [31: 0] scheduling_element_id: u32 }

    0x785 ModifySchedulingElement
        in ModifySchedulingElementIn: 0x80, uid {
            0x008 [31:24] scheduling_hierarchy: u8,
            0x00c [31: 0] scheduling_element_id: u32,
            0x014 [31: 0] modify_bitmask: u32,
            0x020         scheduling_context: SchedulingContext,
        }
        out ModifySchedulingElementOut: 0x40 {}

    0x784 QuerySchedulingElement
        in QuerySchedulingElementIn: 0x40, uid {
            0x008 [31:24] scheduling_hierarchy: u8,
            0x00c [31: 0] scheduling_element_id: u32,
        }
        out QuerySchedulingElementOut: 0x80 { 0x020 scheduling_context: SchedulingContext }

    0x783 DestroySchedulingElement
        in DestroySchedulingElementIn: 0x40, uid {
            0x008 [31:24] scheduling_hierarchy: u8,
            0x00c [31: 0] scheduling_element_id: u32,
        }
        out DestroySchedulingElementOut: 0x40 {}
}
