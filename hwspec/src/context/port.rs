//! Port registers, accessed with `ACCESS_REG`.
use crate::hw_layout;

/// Register ID of PMTU, the port's MTU.
pub const PMTU: u16 = 0x5003;
/// Register ID of PTYS, the port's type and speed.
pub const PTYS: u16 = 0x5004;
/// `proto_mask` of PTYS: InfiniBand.
pub const PROTO_INFINIBAND: u8 = 1 << 0;
/// `proto_mask` of PTYS: Ethernet.
pub const PROTO_ETHERNET: u8 = 1 << 2;

hw_layout! {
    /// PAOS: port administrative and operational status.
    pub struct Paos: 0x10 {
        0x000 [31:24] swid: u8,
        0x000 [23:16] local_port: u8,
        0x000 [11: 8] admin_status: u8,
        0x000 [ 3: 0] oper_status: u8,
        0x004 [31:31] ase: bool,
        0x004 [30:30] ee: bool,
        0x004 [ 1: 0] e: u8,
    }

    /// PMTU: port MTU.
    pub struct Pmtu: 0x10 {
        0x000 [23:16] local_port: u8,
        0x004 [31:16] max_mtu: u16,
        0x008 [31:16] admin_mtu: u16,
        0x00c [31:16] oper_mtu: u16,
    }

    /// PTYS: port type and speed.
    pub struct Ptys: 0x40 {
        0x000 [30:30] an_disable_admin: bool,
        0x000 [29:29] an_disable_cap: bool,
        0x000 [23:16] local_port: u8,
        0x000 [ 2: 0] proto_mask: u8,
        0x004 [31:28] an_status: u8,
        0x004 [15: 0] data_rate_oper: u16,
        0x008 [31: 0] ext_eth_proto_capability: u32,
        0x00c [31: 0] eth_proto_capability: u32,
        0x010 [31:16] ib_link_width_capability: u16,
        0x010 [15: 0] ib_proto_capability: u16,
        0x014 [31: 0] ext_eth_proto_admin: u32,
        0x018 [31: 0] eth_proto_admin: u32,
        0x01c [31:16] ib_link_width_admin: u16,
        0x01c [15: 0] ib_proto_admin: u16,
        0x020 [31: 0] ext_eth_proto_oper: u32,
        0x024 [31: 0] eth_proto_oper: u32,
        0x028 [31:16] ib_link_width_oper: u16,
        0x028 [15: 0] ib_proto_oper: u16,
        0x02c [ 3: 0] connector_type: u8,
        0x030 [31: 0] eth_proto_lp_advertise: u32,
    }

    /// PPCNT: port performance counters; the group determines the layout of `counter_set`.
    pub struct Ppcnt: 0x100 {
        0x000 [31:24] swid: u8,
        0x000 [23:16] local_port: u8,
        0x000 [15:14] pnat: u8,
        0x000 [ 5: 0] grp: u8,
        0x004 [31:31] clr: bool,
        0x004 [ 2: 0] prio_tc: u8,
        0x008         counter_set: [u8; 0xf8],
    }

    /// PPCNT group 0: IEEE 802.3 counters.
    pub struct Ieee8023Counters: 0xf8 {
        0x000 [31: 0] a_frames_transmitted_ok_high: u32,
        0x004 [31: 0] a_frames_transmitted_ok_low: u32,
        0x008 [31: 0] a_frames_received_ok_high: u32,
        0x00c [31: 0] a_frames_received_ok_low: u32,
        0x010 [31: 0] a_frame_check_sequence_errors_high: u32,
        0x014 [31: 0] a_frame_check_sequence_errors_low: u32,
        0x018 [31: 0] a_alignment_errors_high: u32,
        0x01c [31: 0] a_alignment_errors_low: u32,
        0x020 [31: 0] a_octets_transmitted_ok_high: u32,
        0x024 [31: 0] a_octets_transmitted_ok_low: u32,
        0x028 [31: 0] a_octets_received_ok_high: u32,
        0x02c [31: 0] a_octets_received_ok_low: u32,
        0x030 [31: 0] a_multicast_frames_xmitted_ok_high: u32,
        0x034 [31: 0] a_multicast_frames_xmitted_ok_low: u32,
        0x038 [31: 0] a_broadcast_frames_xmitted_ok_high: u32,
        0x03c [31: 0] a_broadcast_frames_xmitted_ok_low: u32,
        0x040 [31: 0] a_multicast_frames_received_ok_high: u32,
        0x044 [31: 0] a_multicast_frames_received_ok_low: u32,
        0x048 [31: 0] a_broadcast_frames_received_ok_high: u32,
        0x04c [31: 0] a_broadcast_frames_received_ok_low: u32,
        0x050 [31: 0] a_in_range_length_errors_high: u32,
        0x054 [31: 0] a_in_range_length_errors_low: u32,
        0x058 [31: 0] a_out_of_range_length_field_high: u32,
        0x05c [31: 0] a_out_of_range_length_field_low: u32,
        0x060 [31: 0] a_frame_too_long_errors_high: u32,
        0x064 [31: 0] a_frame_too_long_errors_low: u32,
        0x068 [31: 0] a_symbol_error_during_carrier_high: u32,
        0x06c [31: 0] a_symbol_error_during_carrier_low: u32,
        0x070 [31: 0] a_mac_control_frames_transmitted_high: u32,
        0x074 [31: 0] a_mac_control_frames_transmitted_low: u32,
        0x078 [31: 0] a_mac_control_frames_received_high: u32,
        0x07c [31: 0] a_mac_control_frames_received_low: u32,
        0x080 [31: 0] a_unsupported_opcodes_received_high: u32,
        0x084 [31: 0] a_unsupported_opcodes_received_low: u32,
        0x088 [31: 0] a_pause_mac_ctrl_frames_received_high: u32,
        0x08c [31: 0] a_pause_mac_ctrl_frames_received_low: u32,
        0x090 [31: 0] a_pause_mac_ctrl_frames_transmitted_high: u32,
        0x094 [31: 0] a_pause_mac_ctrl_frames_transmitted_low: u32,
    }

    /// PPCNT group 1: RFC 2863 counters.
    pub struct Rfc2863Counters: 0xf8 {
        0x000 [31: 0] if_in_octets_high: u32,
        0x004 [31: 0] if_in_octets_low: u32,
        0x008 [31: 0] if_in_ucast_pkts_high: u32,
        0x00c [31: 0] if_in_ucast_pkts_low: u32,
        0x010 [31: 0] if_in_discards_high: u32,
        0x014 [31: 0] if_in_discards_low: u32,
        0x018 [31: 0] if_in_errors_high: u32,
        0x01c [31: 0] if_in_errors_low: u32,
        0x020 [31: 0] if_in_unknown_protos_high: u32,
        0x024 [31: 0] if_in_unknown_protos_low: u32,
        0x028 [31: 0] if_out_octets_high: u32,
        0x02c [31: 0] if_out_octets_low: u32,
        0x030 [31: 0] if_out_ucast_pkts_high: u32,
        0x034 [31: 0] if_out_ucast_pkts_low: u32,
        0x038 [31: 0] if_out_discards_high: u32,
        0x03c [31: 0] if_out_discards_low: u32,
        0x040 [31: 0] if_out_errors_high: u32,
        0x044 [31: 0] if_out_errors_low: u32,
        0x048 [31: 0] if_in_multicast_pkts_high: u32,
        0x04c [31: 0] if_in_multicast_pkts_low: u32,
        0x050 [31: 0] if_in_broadcast_pkts_high: u32,
        0x054 [31: 0] if_in_broadcast_pkts_low: u32,
        0x058 [31: 0] if_out_multicast_pkts_high: u32,
        0x05c [31: 0] if_out_multicast_pkts_low: u32,
        0x060 [31: 0] if_out_broadcast_pkts_high: u32,
        0x064 [31: 0] if_out_broadcast_pkts_low: u32,
    }

    /// PPCNT group 2: RFC 2819 counters.
    pub struct Rfc2819Counters: 0xf8 {
        0x000 [31: 0] ether_stats_drop_events_high: u32,
        0x004 [31: 0] ether_stats_drop_events_low: u32,
        0x008 [31: 0] ether_stats_octets_high: u32,
        0x00c [31: 0] ether_stats_octets_low: u32,
        0x010 [31: 0] ether_stats_pkts_high: u32,
        0x014 [31: 0] ether_stats_pkts_low: u32,
        0x018 [31: 0] ether_stats_broadcast_pkts_high: u32,
        0x01c [31: 0] ether_stats_broadcast_pkts_low: u32,
        0x020 [31: 0] ether_stats_multicast_pkts_high: u32,
        0x024 [31: 0] ether_stats_multicast_pkts_low: u32,
        0x028 [31: 0] ether_stats_crc_align_errors_high: u32,
        0x02c [31: 0] ether_stats_crc_align_errors_low: u32,
        0x030 [31: 0] ether_stats_undersize_pkts_high: u32,
        0x034 [31: 0] ether_stats_undersize_pkts_low: u32,
        0x038 [31: 0] ether_stats_oversize_pkts_high: u32,
        0x03c [31: 0] ether_stats_oversize_pkts_low: u32,
        0x040 [31: 0] ether_stats_fragments_high: u32,
        0x044 [31: 0] ether_stats_fragments_low: u32,
        0x048 [31: 0] ether_stats_jabbers_high: u32,
        0x04c [31: 0] ether_stats_jabbers_low: u32,
        0x050 [31: 0] ether_stats_collisions_high: u32,
        0x054 [31: 0] ether_stats_collisions_low: u32,
        0x058 [31: 0] ether_stats_pkts64octets_high: u32,
        0x05c [31: 0] ether_stats_pkts64octets_low: u32,
        0x060 [31: 0] ether_stats_pkts65to127octets_high: u32,
        0x064 [31: 0] ether_stats_pkts65to127octets_low: u32,
        0x068 [31: 0] ether_stats_pkts128to255octets_high: u32,
        0x06c [31: 0] ether_stats_pkts128to255octets_low: u32,
        0x070 [31: 0] ether_stats_pkts256to511octets_high: u32,
        0x074 [31: 0] ether_stats_pkts256to511octets_low: u32,
        0x078 [31: 0] ether_stats_pkts512to1023octets_high: u32,
        0x07c [31: 0] ether_stats_pkts512to1023octets_low: u32,
        0x080 [31: 0] ether_stats_pkts1024to1518octets_high: u32,
        0x084 [31: 0] ether_stats_pkts1024to1518octets_low: u32,
        0x088 [31: 0] ether_stats_pkts1519to2047octets_high: u32,
        0x08c [31: 0] ether_stats_pkts1519to2047octets_low: u32,
        0x090 [31: 0] ether_stats_pkts2048to4095octets_high: u32,
        0x094 [31: 0] ether_stats_pkts2048to4095octets_low: u32,
        0x098 [31: 0] ether_stats_pkts4096to8191octets_high: u32,
        0x09c [31: 0] ether_stats_pkts4096to8191octets_low: u32,
        0x0a0 [31: 0] ether_stats_pkts8192to10239octets_high: u32,
        0x0a4 [31: 0] ether_stats_pkts8192to10239octets_low: u32,
    }

    /// PPCNT group 0x10: counters of one priority.
    pub struct PriorityCounters: 0xf8 {
        0x000 [31: 0] rx_octets_high: u32,
        0x004 [31: 0] rx_octets_low: u32,
        0x020 [31: 0] rx_frames_high: u32,
        0x024 [31: 0] rx_frames_low: u32,
        0x028 [31: 0] tx_octets_high: u32,
        0x02c [31: 0] tx_octets_low: u32,
        0x048 [31: 0] tx_frames_high: u32,
        0x04c [31: 0] tx_frames_low: u32,
        0x050 [31: 0] rx_pause_high: u32,
        0x054 [31: 0] rx_pause_low: u32,
        0x058 [31: 0] rx_pause_duration_high: u32,
        0x05c [31: 0] rx_pause_duration_low: u32,
        0x060 [31: 0] tx_pause_high: u32,
        0x064 [31: 0] tx_pause_low: u32,
        0x068 [31: 0] tx_pause_duration_high: u32,
        0x06c [31: 0] tx_pause_duration_low: u32,
        0x070 [31: 0] rx_pause_transition_high: u32,
        0x074 [31: 0] rx_pause_transition_low: u32,
        0x078 [31: 0] rx_discards_high: u32,
        0x07c [31: 0] rx_discards_low: u32,
        0x080 [31: 0] device_stall_minor_watermark_cnt_high: u32,
        0x084 [31: 0] device_stall_minor_watermark_cnt_low: u32,
        0x088 [31: 0] device_stall_critical_watermark_cnt_high: u32,
        0x08c [31: 0] device_stall_critical_watermark_cnt_low: u32,
    }

    /// PPLM: forward error correction modes.
    pub struct Pplm: 0x50 {
        0x000 [23:16] local_port: u8,
        0x008 [31:24] port_profile_mode: u8,
        0x008 [23:16] static_port_profile: u8,
        0x008 [15: 8] active_port_profile: u8,
        0x00c [31:24] retransmission_active: u8,
        0x00c [23: 0] fec_mode_active: u32,
        0x010 [31:28] rs_fec_correction_bypass_cap: u8,
        0x010 [19:16] fec_override_cap_56g: u8,
        0x010 [15:12] fec_override_cap_100g: u8,
        0x010 [11: 8] fec_override_cap_50g: u8,
        0x010 [ 7: 4] fec_override_cap_25g: u8,
        0x010 [ 3: 0] fec_override_cap_10g_40g: u8,
        0x014 [31:28] rs_fec_correction_bypass_admin: u8,
        0x014 [19:16] fec_override_admin_56g: u8,
        0x014 [15:12] fec_override_admin_100g: u8,
        0x014 [11: 8] fec_override_admin_50g: u8,
        0x014 [ 7: 4] fec_override_admin_25g: u8,
        0x014 [ 3: 0] fec_override_admin_10g_40g: u8,
        0x018 [31:16] fec_override_cap_400g_8x: u16,
        0x018 [15: 0] fec_override_cap_200g_4x: u16,
        0x01c [31:16] fec_override_cap_100g_2x: u16,
        0x01c [15: 0] fec_override_cap_50g_1x: u16,
        0x020 [31:16] fec_override_admin_400g_8x: u16,
        0x020 [15: 0] fec_override_admin_200g_4x: u16,
        0x024 [31:16] fec_override_admin_100g_2x: u16,
        0x024 [15: 0] fec_override_admin_50g_1x: u16,
    }

    /// PCAP: capability mask of the port.
    pub struct Pcap: 0x14 {
        0x000 [23:16] local_port: u8,
        0x004         port_capability_mask: [u8; 0x10],
    }

    /// PMLP: modules and lanes of the port.
    pub struct Pmlp: 0x40 {
        0x000 [31:31] rxtx: bool,
        0x000 [23:16] local_port: u8,
        0x000 [ 7: 0] width: u8,
        0x004 [31: 0] lane0_module_mapping: u32,
        0x008 [31: 0] lane1_module_mapping: u32,
        0x00c [31: 0] lane2_module_mapping: u32,
        0x010 [31: 0] lane3_module_mapping: u32,
    }

    /// PFCC: flow control of the port.
    pub struct Pfcc: 0x20 {
        0x000 [23:16] local_port: u8,
        0x000 [ 4: 4] ppan_mask_n: bool,
        0x000 [ 3: 3] minor_stall_mask: bool,
        0x000 [ 2: 2] critical_stall_mask: bool,
        0x004 [31:28] ppan: u8,
        0x004 [23:16] prio_mask_tx: u8,
        0x004 [ 7: 0] prio_mask_rx: u8,
        0x008 [31:31] pptx: bool,
        0x008 [30:30] aptx: bool,
        0x008 [29:29] pptx_mask_n: bool,
        0x008 [23:16] pfctx: u8,
        0x00c [31:31] pprx: bool,
        0x00c [30:30] aprx: bool,
        0x00c [29:29] pprx_mask_n: bool,
        0x00c [23:16] pfcrx: u8,
        0x010 [31:16] device_stall_minor_watermark: u16,
        0x010 [15: 0] device_stall_critical_watermark: u16,
    }

    /// PCMR: frame check sequence handling.
    pub struct Pcmr: 0xc {
        0x000 [23:16] local_port: u8,
        0x004 [31:31] entropy_force_cap: bool,
        0x004 [30:30] entropy_calc_cap: bool,
        0x004 [29:29] entropy_gre_calc_cap: bool,
        0x004 [13:13] rx_ts_over_crc_cap: bool,
        0x004 [ 1: 1] fcs_cap: bool,
        0x008 [31:31] entropy_force: bool,
        0x008 [30:30] entropy_calc: bool,
        0x008 [29:29] entropy_gre_calc: bool,
        0x008 [13:13] rx_ts_over_crc: bool,
        0x008 [ 1: 1] fcs_chk: bool,
    }

    /// PVLC: virtual lanes.
    pub struct Pvlc: 0x10 {
        0x000 [23:16] local_port: u8,
        0x004 [ 3: 0] vl_hw_cap: u8,
        0x008 [ 3: 0] vl_admin: u8,
        0x00c [ 3: 0] vl_operational: u8,
    }
}
