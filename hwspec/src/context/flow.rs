//! Flow tables: matches, actions, and the capabilities of a device.
use crate::hw_layout;

/// `flow_context.action`: drop.
pub const DROP: u16 = 2;
/// `flow_context.action`: forward.
pub const FORWARD: u16 = 4;
/// `flow_context.action`: count.
pub const COUNT: u16 = 8;
/// `destination_type`: flow table.
pub const TO_TABLE: u8 = 1;
/// `destination_type`: TIR.
pub const TO_TIR: u8 = 2;
/// `match_criteria_enable`: outer headers.
pub const OUTER: u8 = 1;

hw_layout! {
    /// Header fields that a flow table can match: layers 2 to 4.
    pub struct MatchHeaders: 0x40 {
        0x000 [31: 0] smac_47_16: u32,
        0x004 [31:16] smac_15_0: u16,
        0x004 [15: 0] ethertype: u16,
        0x008 [31: 0] dmac_47_16: u32,
        0x00c [31:16] dmac_15_0: u16,
        0x00c [15:13] first_prio: u8,
        0x00c [12:12] first_cfi: bool,
        0x00c [11: 0] first_vid: u16,
        0x010 [31:24] ip_protocol: u8,
        0x010 [23:18] ip_dscp: u8,
        0x010 [17:16] ip_ecn: u8,
        0x010 [15:15] cvlan_tag: bool,
        0x010 [14:14] svlan_tag: bool,
        0x010 [13:13] frag: bool,
        0x010 [12: 9] ip_version: u8,
        0x010 [ 8: 0] tcp_flags: u16,
        0x014 [31:16] tcp_sport: u16,
        0x014 [15: 0] tcp_dport: u16,
        0x018 [15:12] ipv4_ihl: u8,
        0x018 [ 7: 0] ttl_hoplimit: u8,
        0x01c [31:16] udp_sport: u16,
        0x01c [15: 0] udp_dport: u16,
        0x020         src_ipv4_src_ipv6: [u8; 0x10],
        0x030         dst_ipv4_dst_ipv6: [u8; 0x10],
    }

    /// Further fields that a flow table can match: origin of a packet, second tags and tunnels.
    pub struct MatchMisc: 0x40 {
        0x000 [31:31] gre_c_present: bool,
        0x000 [29:29] gre_k_present: bool,
        0x000 [28:28] gre_s_present: bool,
        0x000 [27:24] source_vhca_port: u8,
        0x000 [23: 0] source_sqn: u32,
        0x004 [31:16] source_eswitch_owner_vhca_id: u16,
        0x004 [15: 0] source_port: u16,
        0x008 [31:29] outer_second_prio: u8,
        0x008 [28:28] outer_second_cfi: bool,
        0x008 [27:16] outer_second_vid: u16,
        0x008 [15:13] inner_second_prio: u8,
        0x008 [12:12] inner_second_cfi: bool,
        0x008 [11: 0] inner_second_vid: u16,
        0x00c [31:31] outer_second_cvlan_tag: bool,
        0x00c [30:30] inner_second_cvlan_tag: bool,
        0x00c [29:29] outer_second_svlan_tag: bool,
        0x00c [28:28] inner_second_svlan_tag: bool,
        0x00c [15: 0] gre_protocol: u16,
        0x010         gre_key: [u8; 0x4],
        0x014 [31: 8] vxlan_vni: u32,
        0x014 [ 7: 0] bth_opcode: u8,
        0x018 [31: 8] geneve_vni: u32,
        0x018 [ 1: 1] geneve_tlv_option_0_exist: bool,
        0x018 [ 0: 0] geneve_oam: bool,
        0x01c [19: 0] outer_ipv6_flow_label: u32,
        0x020 [19: 0] inner_ipv6_flow_label: u32,
        0x024 [21:16] geneve_opt_len: u8,
        0x024 [15: 0] geneve_protocol_type: u16,
        0x028 [23: 0] bth_dst_qp: u32,
        0x030 [31: 0] outer_esp_spi: u32,
    }

    /// All fields that a flow table can match.
    pub struct MatchParam: 0x200 {
        0x000         outer_headers: MatchHeaders,
        0x040         misc_parameters: MatchMisc,
        0x080         inner_headers: MatchHeaders,
        0x0c0         misc_parameters_2: [u8; 0x40],
        0x100         misc_parameters_3: [u8; 0x40],
        0x140         misc_parameters_4: [u8; 0x40],
        0x180         misc_parameters_5: [u8; 0x40],
    }

    /// Flow table: its size, and the action for packets that match no entry.
    pub struct FlowTableContext: 0x28 {
        0x000 [31:31] reformat_en: bool,
        0x000 [30:30] decap_en: bool,
        0x000 [29:29] sw_owner: bool,
        0x000 [28:28] termination_table: bool,
        0x000 [27:24] table_miss_action: u8,
        0x000 [23:16] level: u8,
        0x000 [ 7: 0] log_size: u8,
        0x004 [23: 0] table_miss_id: u32,
        0x008 [23: 0] lag_master_next_table_id: u32,
        0x018 [63: 0] sw_owner_icm_root_1: u64,
        0x020 [63: 0] sw_owner_icm_root_0: u64,
    }

    /// A VLAN tag pushed by an action.
    pub struct FlowVlan: 0x4 {
        0x000 [31:16] ethtype: u16,
        0x000 [15:13] prio: u8,
        0x000 [12:12] cfi: bool,
        0x000 [11: 0] vid: u16,
    }

    /// Flow table entry; the list of destinations and counters follows.
    pub struct FlowContext: 0x300 {
        0x000         push_vlan: FlowVlan,
        0x004 [31: 0] group_id: u32,
        0x008 [23: 0] flow_tag: u32,
        0x00c [15: 0] action: u16,
        0x010 [31:31] extended_destination: bool,
        0x010 [29:28] flow_source: u8,
        0x010 [27:24] encrypt_decrypt_type: u8,
        0x010 [23: 0] destination_list_size: u32,
        0x014 [23: 0] flow_counter_list_size: u32,
        0x018 [31: 0] packet_reformat_id: u32,
        0x01c [31: 0] modify_header_id: u32,
        0x020         push_vlan_2: FlowVlan,
        0x024 [31: 0] encrypt_decrypt_obj_id: u32,
        0x040         match_value: MatchParam,
        0x240         execute_aso: [u8; 0x20],
    }

    /// Destination of matching packets.
    pub struct FlowDestination: 0x8 {
        0x000 [31:24] destination_type: u8,
        0x000 [23: 0] destination_id: u32,
        0x004 [31:31] destination_eswitch_owner_vhca_id_valid: bool,
        0x004 [30:30] packet_reformat: bool,
        0x004 [15: 0] destination_eswitch_owner_vhca_id: u16,
    }

    /// A counter of matching packets, in the list of destinations.
    pub struct FlowCounterId: 0x8 {
        0x000 [31: 0] flow_counter_id: u32,
    }

    /// Capabilities: header fields that flow tables can match.
    pub struct MatchFields: 0x10 {
        0x000 [31:31] outer_dmac: bool,
        0x000 [30:30] outer_smac: bool,
        0x000 [29:29] outer_ether_type: bool,
        0x000 [28:28] outer_ip_version: bool,
        0x000 [27:27] outer_first_prio: bool,
        0x000 [26:26] outer_first_cfi: bool,
        0x000 [25:25] outer_first_vid: bool,
        0x000 [24:24] outer_ipv4_ttl: bool,
        0x000 [23:23] outer_second_prio: bool,
        0x000 [22:22] outer_second_cfi: bool,
        0x000 [21:21] outer_second_vid: bool,
        0x000 [19:19] outer_sip: bool,
        0x000 [18:18] outer_dip: bool,
        0x000 [17:17] outer_frag: bool,
        0x000 [16:16] outer_ip_protocol: bool,
        0x000 [15:15] outer_ip_ecn: bool,
        0x000 [14:14] outer_ip_dscp: bool,
        0x000 [13:13] outer_udp_sport: bool,
        0x000 [12:12] outer_udp_dport: bool,
        0x000 [11:11] outer_tcp_sport: bool,
        0x000 [10:10] outer_tcp_dport: bool,
        0x000 [ 9: 9] outer_tcp_flags: bool,
        0x000 [ 8: 8] outer_gre_protocol: bool,
        0x000 [ 7: 7] outer_gre_key: bool,
        0x000 [ 6: 6] outer_vxlan_vni: bool,
        0x000 [ 5: 5] outer_geneve_vni: bool,
        0x000 [ 4: 4] outer_geneve_oam: bool,
        0x000 [ 3: 3] outer_geneve_protocol_type: bool,
        0x000 [ 2: 2] outer_geneve_opt_len: bool,
        0x000 [ 1: 1] source_vhca_port: bool,
        0x000 [ 0: 0] source_eswitch_port: bool,
        0x004 [31:31] inner_dmac: bool,
        0x004 [30:30] inner_smac: bool,
        0x004 [29:29] inner_ether_type: bool,
        0x004 [28:28] inner_ip_version: bool,
        0x004 [27:27] inner_first_prio: bool,
        0x004 [26:26] inner_first_cfi: bool,
        0x004 [25:25] inner_first_vid: bool,
        0x004 [23:23] inner_second_prio: bool,
        0x004 [22:22] inner_second_cfi: bool,
        0x004 [21:21] inner_second_vid: bool,
        0x004 [19:19] inner_sip: bool,
        0x004 [18:18] inner_dip: bool,
        0x004 [17:17] inner_frag: bool,
        0x004 [16:16] inner_ip_protocol: bool,
        0x004 [15:15] inner_ip_ecn: bool,
        0x004 [14:14] inner_ip_dscp: bool,
        0x004 [13:13] inner_udp_sport: bool,
        0x004 [12:12] inner_udp_dport: bool,
        0x004 [11:11] inner_tcp_sport: bool,
        0x004 [10:10] inner_tcp_dport: bool,
        0x004 [ 9: 9] inner_tcp_flags: bool,
        0x008 [31:31] geneve_tlv_option_0_data: bool,
        0x008 [30:30] geneve_tlv_option_0_exist: bool,
        0x008 [26:23] outer_first_mpls_over_udp: u8,
        0x008 [22:19] outer_first_mpls_over_gre: u8,
        0x008 [18:15] inner_first_mpls: u8,
        0x008 [14:11] outer_first_mpls: u8,
        0x008 [ 8: 8] outer_esp_spi: bool,
        0x008 [ 5: 5] bth_dst_qp: bool,
        0x00c [ 7: 7] metadata_reg_c_7: bool,
        0x00c [ 6: 6] metadata_reg_c_6: bool,
        0x00c [ 5: 5] metadata_reg_c_5: bool,
        0x00c [ 4: 4] metadata_reg_c_4: bool,
        0x00c [ 3: 3] metadata_reg_c_3: bool,
        0x00c [ 2: 2] metadata_reg_c_2: bool,
        0x00c [ 1: 1] metadata_reg_c_1: bool,
        0x00c [ 0: 0] metadata_reg_c_0: bool,
    }

    /// Capabilities of one type of flow table.
    pub struct FlowTableProps: 0x40 {
        0x000 [31:31] ft_support: bool,
        0x000 [29:29] flow_counter: bool,
        0x000 [28:28] flow_modify_en: bool,
        0x000 [27:27] modify_root: bool,
        0x000 [26:26] identified_miss_table_mode: bool,
        0x000 [25:25] flow_table_modify: bool,
        0x000 [24:24] reformat: bool,
        0x000 [23:23] decap: bool,
        0x000 [21:21] pop_vlan: bool,
        0x000 [20:20] push_vlan: bool,
        0x000 [18:18] pop_vlan_2: bool,
        0x000 [17:17] push_vlan_2: bool,
        0x000 [16:16] reformat_and_vlan_action: bool,
        0x000 [14:14] sw_owner: bool,
        0x000 [13:13] reformat_l3_tunnel_to_l2: bool,
        0x000 [12:12] reformat_l2_to_l3_tunnel: bool,
        0x000 [11:11] reformat_and_modify_action: bool,
        0x000 [10:10] ignore_flow_level: bool,
        0x000 [ 8: 8] table_miss_action_domain: bool,
        0x000 [ 7: 7] termination_table: bool,
        0x000 [ 6: 6] reformat_and_fwd_to_table: bool,
        0x000 [ 3: 3] ipsec_encrypt: bool,
        0x000 [ 2: 2] ipsec_decrypt: bool,
        0x000 [ 1: 1] sw_owner_v2: bool,
        0x004 [31:31] termination_table_raw_traffic: bool,
        0x004 [29:24] log_max_ft_size: u8,
        0x004 [23:16] log_max_modify_header_context: u8,
        0x004 [15: 8] max_modify_header_actions: u8,
        0x004 [ 7: 0] max_ft_level: u8,
        0x008 [25:25] execute_aso: bool,
        0x00c [29:29] reformat_insert: bool,
        0x00c [28:28] reformat_remove: bool,
        0x00c [27:27] macsec_encrypt: bool,
        0x00c [26:26] macsec_decrypt: bool,
        0x00c [23:23] reformat_add_macsec: bool,
        0x00c [22:22] reformat_remove_macsec: bool,
        0x00c [ 7: 0] log_max_ft_num: u8,
        0x010 [15: 8] log_max_flow_counter: u8,
        0x010 [ 7: 0] log_max_destination: u8,
        0x014 [ 7: 0] log_max_flow: u8,
        0x020         ft_field_support: MatchFields,
        0x030         ft_field_bitmask_support: MatchFields,
    }

    /// Flow table capabilities (capability type 0x7).
    pub struct FlowTableCaps: 0x1000 {
        0x000 [31:31] nic_rx_multi_path_tirs: bool,
        0x000 [30:30] nic_rx_multi_path_tirs_fts: bool,
        0x000 [29:29] allow_sniffer_and_nic_rx_shared_tir: bool,
        0x000 [24:24] sw_owner_reformat_supported: bool,
        0x004 [31:31] encap_general_header: bool,
        0x004 [20:16] log_max_packet_reformat_context: u8,
        0x004 [ 9: 0] max_encap_header_size: u16,
        0x040         flow_table_properties_nic_receive: FlowTableProps,
        0x080         flow_table_properties_nic_receive_rdma: FlowTableProps,
        0x0c0         flow_table_properties_nic_receive_sniffer: FlowTableProps,
        0x100         flow_table_properties_nic_transmit: FlowTableProps,
        0x140         flow_table_properties_nic_transmit_rdma: FlowTableProps,
        0x180         flow_table_properties_nic_transmit_sniffer: FlowTableProps,
        0x2a0         ft_field_support_2_nic_receive_rdma: [u8; 0x10],
        0x300         ft_field_support_2_nic_transmit_rdma: [u8; 0x10],
        0x400 [63: 0] sw_steering_nic_rx_action_drop_icm_address: u64,
        0x408 [63: 0] sw_steering_nic_tx_action_drop_icm_address: u64,
        0x410 [63: 0] sw_steering_nic_tx_action_allow_icm_address: u64,
    }
}
