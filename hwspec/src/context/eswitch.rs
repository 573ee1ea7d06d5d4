//! The e-switch, managed by the PF's driver: its capabilities and its vport contexts.
use super::flow::FlowTableProps;
use crate::hw_layout;

hw_layout! {
    /// E-switch capabilities (capability type 0x9).
    pub struct EswitchCap: 0x100 {
        0x000 [31:31] vport_svlan_strip: bool,
        0x000 [30:30] vport_cvlan_strip: bool,
        0x000 [29:29] vport_svlan_insert: bool,
        0x000 [28:28] vport_cvlan_insert_if_not_exist: bool,
        0x000 [27:27] vport_cvlan_insert_overwrite: bool,
        0x000 [25:25] vport_cvlan_insert_always: bool,
        0x000 [24:24] esw_shared_ingress_acl: bool,
        0x000 [23:23] esw_uplink_ingress_acl: bool,
        0x000 [22:22] root_ft_on_other_esw: bool,
        0x000 [ 6: 6] esw_functions_changed: bool,
        0x000 [ 4: 4] ecpf_vport_exists: bool,
        0x000 [ 3: 3] counter_eswitch_affinity: bool,
        0x000 [ 2: 2] merged_eswitch: bool,
        0x000 [ 1: 1] nic_vport_node_guid_modify: bool,
        0x000 [ 0: 0] nic_vport_port_guid_modify: bool,
        0x004 [31:31] vxlan_encap_decap: bool,
        0x004 [30:30] nvgre_encap_decap: bool,
        0x004 [28:24] log_max_fdb_encap_uplink: u8,
        0x004 [20:16] log_max_packet_reformat_context: u8,
        0x004 [ 9: 0] max_encap_header_size: u16,
        0x008 [20:16] log_max_esw_sf: u8,
        0x008 [15: 0] esw_sf_base_id: u16,
    }

    /// Flow table capabilities of the e-switch (capability type 0x8).
    pub struct EswitchFlowTableCaps: 0x1000 {
        0x000 [31:24] fdb_to_vport_reg_c_id: u8,
        0x000 [10:10] fdb_modify_header_fwd_to_table: bool,
        0x000 [ 9: 9] fdb_ipv4_ttl_modify: bool,
        0x000 [ 8: 8] flow_source: bool,
        0x000 [ 5: 5] multi_fdb_encap: bool,
        0x000 [ 4: 4] egress_acl_forward_to_vport: bool,
        0x000 [ 3: 3] fdb_multi_path_to_table: bool,
        0x040         flow_table_properties_nic_esw_fdb: FlowTableProps,
        0x080         flow_table_properties_esw_acl_ingress: FlowTableProps,
        0x0c0         flow_table_properties_esw_acl_egress: FlowTableProps,
        0x300 [63: 0] sw_steering_fdb_action_drop_icm_address_rx: u64,
        0x308 [63: 0] sw_steering_fdb_action_drop_icm_address_tx: u64,
        0x310 [63: 0] sw_steering_uplink_icm_address_rx: u64,
        0x318 [63: 0] sw_steering_uplink_icm_address_tx: u64,
    }

    /// The e-switch's modifications of a vport's frames.
    pub struct EswVportContext: 0x100 {
        0x000 [31:31] fdb_to_vport_reg_c: bool,
        0x000 [28:28] vport_svlan_strip: bool,
        0x000 [27:27] vport_cvlan_strip: bool,
        0x000 [26:26] vport_svlan_insert: bool,
        0x000 [25:24] vport_cvlan_insert: u8,
        0x000 [23:16] fdb_to_vport_reg_c_id: u8,
        0x008 [31:31] svlan_cfi: bool,
        0x008 [30:28] svlan_pcp: u8,
        0x008 [27:16] svlan_id: u16,
        0x008 [15:15] cvlan_cfi: bool,
        0x008 [14:12] cvlan_pcp: u8,
        0x008 [11: 0] cvlan_id: u16,
        0x0f0 [63: 0] sw_steering_vport_icm_address_rx: u64,
        0x0f8 [63: 0] sw_steering_vport_icm_address_tx: u64,
    }

    /// Selects the fields of an [`EswVportContext`] that a command changes.
    pub struct EswVportFields: 0x4 {
        0x000 [ 4: 4] fdb_to_vport_reg_c_id: bool,
        0x000 [ 3: 3] vport_cvlan_insert: bool,
        0x000 [ 2: 2] vport_svlan_insert: bool,
        0x000 [ 1: 1] vport_cvlan_strip: bool,
        0x000 [ 0: 0] vport_svlan_strip: bool,
    }

    /// A node in the hierarchy of bandwidth shares. Rates are in Mb/s.
    pub struct SchedulingContext: 0x40 {
        0x000 [31:24] element_type: u8,
        0x004 [31: 0] element_attributes: u32,
        0x008 [31: 0] parent_element_id: u32,
        0x014 [31: 0] bw_share: u32,
        0x018 [31: 0] max_average_bw: u32,
    }

    /// Properties of the host's PF, for the e-switch manager.
    pub struct HostParams: 0x40 {
        0x000 [31:24] host_number: u8,
        0x000 [18:18] host_pf_not_exist: bool,
        0x000 [16:16] host_pf_disabled: bool,
        0x000 [15: 0] host_num_of_vfs: u16,
        0x004 [31:16] host_total_vfs: u16,
        0x004 [15: 0] host_pci_bus: u16,
        0x008 [15: 0] host_pci_device: u16,
        0x00c [15: 0] host_pci_function: u16,
    }
}
