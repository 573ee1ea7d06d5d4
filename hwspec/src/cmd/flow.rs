//! Flow table commands.
use super::CmdOut;
use crate::context::{
    flow::{FlowContext, FlowTableContext, MatchParam},
    vport::TrafficCounter,
};

commands! {
    0x930 CreateFlowTable
        in CreateFlowTableIn: 0x40, uid; other_vport vport_number {
            0x010 [31:24] table_type: u8,
            0x018         flow_table_context: FlowTableContext,
        }
        out CreateFlowTableOut: 0x10 {
            0x000 [23: 0] icm_address_63_40: u32,
            0x008 [31:24] icm_address_39_32: u8,
            0x008 [23: 0] table_id: u32,
            0x00c [31: 0] icm_address_31_0: u32,
        }

    0x93c ModifyFlowTable
        in ModifyFlowTableIn: 0x40, uid; other_vport vport_number {
            0x00c [15: 0] modify_field_select: u16,
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
            0x018         flow_table_context: FlowTableContext,
        }
        out CmdOut

    0x932 QueryFlowTable
        in QueryFlowTableIn: 0x40, uid {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
        }
        out QueryFlowTableOut: 0x40 { 0x018 flow_table_context: FlowTableContext }

    0x931 DestroyFlowTable
        in DestroyFlowTableIn: 0x40, uid; other_vport vport_number {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
        }
        out CmdOut

    0x92f SetFlowTableRoot
        in SetFlowTableRootIn: 0x40; other_vport vport_number {
            0x010 [31:24] table_type: u8,
            0x010 [16:16] table_of_other_vport: bool,
            0x010 [15: 0] table_vport_number: u16,
            0x014 [23: 0] table_id: u32,
            0x018 [23: 0] underlay_qpn: u32,
            0x01c [31:31] table_eswitch_owner_vhca_id_valid: bool,
            0x01c [15: 0] table_eswitch_owner_vhca_id: u16,
        }
        out CmdOut

    0x933 CreateFlowGroup
        in CreateFlowGroupIn: 0x400, uid; other_vport vport_number {
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
        out CreateFlowGroupOut: 0x10 { 0x008 [23: 0] group_id: u32 }

    0x935 QueryFlowGroup
        in QueryFlowGroupIn: 0x40, uid {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
            0x018 [31: 0] group_id: u32,
        }
        out QueryFlowGroupOut: 0x400 {
            0x01c [31: 0] start_flow_index: u32,
            0x024 [31: 0] end_flow_index: u32,
            0x03c [ 7: 0] match_criteria_enable: u8,
            0x040         match_criteria: MatchParam,
        }

    0x934 DestroyFlowGroup
        in DestroyFlowGroupIn: 0x40, uid; other_vport vport_number {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
            0x018 [31: 0] group_id: u32,
        }
        out CmdOut

    0x936 SetFlowTableEntry
        in SetFteIn: 0x340, uid; other_vport vport_number {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
            0x018 [31:31] ignore_flow_level: bool,
            0x018 [ 7: 0] modify_enable_mask: u8,
            0x020 [31: 0] flow_index: u32,
            0x040         flow_context: FlowContext,
        } then Destinations
        out CmdOut

    0x937 QueryFlowTableEntry
        in QueryFteIn: 0x40, uid {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
            0x020 [31: 0] flow_index: u32,
        }
        out QueryFteOut: 0x340 { 0x040 flow_context: FlowContext } then Destinations

    0x938 DeleteFlowTableEntry
        in DeleteFteIn: 0x40, uid; other_vport vport_number {
            0x010 [31:24] table_type: u8,
            0x014 [23: 0] table_id: u32,
            0x020 [31: 0] flow_index: u32,
        }
        out CmdOut

    0x939 AllocFlowCounter
        in AllocFlowCounterIn: 0x10, uid {
            0x00c [12: 8] flow_counter_bulk_log_size: u8,
            0x00c [ 7: 0] flow_counter_bulk: u8,
        }
        out AllocFlowCounterOut: 0x10 { 0x008 [31: 0] flow_counter_id: u32 }

    0x93b QueryFlowCounter
        in QueryFlowCounterIn: 0x20, uid {
            0x018 [31:31] clear: bool,
            0x018 [15: 0] num_of_counters: u16,
            0x01c [31: 0] flow_counter_id: u32,
        }
        out CmdOut then flow_statistics: [TrafficCounter]

    0x93a DeallocFlowCounter
        in DeallocFlowCounterIn: 0x10, uid { 0x008 [31: 0] flow_counter_id: u32 }
        out CmdOut
}
