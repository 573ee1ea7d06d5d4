//! Contexts of the transport interfaces and the table of receive queues.
use crate::hw_layout;

/// `tirc.disp_type`: all packets to one queue.
pub const DIRECT: u8 = 0;
/// `tirc.disp_type`: through a table of queues.
pub const INDIRECT: u8 = 1;
/// `tirc.rx_hash_fn`: none.
pub const NO_HASH: u8 = 0;
/// `tirc.rx_hash_fn`: the bytes of the fields, combined by XOR.
pub const XOR: u8 = 1;
/// `tirc.rx_hash_fn`: Toeplitz.
pub const TOEPLITZ: u8 = 2;

hw_layout! {
    /// Transport interface send: the common attributes of the send queues that refer to it.
    pub struct TisContext: 0xa0 {
        0x000 [31:31] strict_lag_tx_port_affinity: bool,
        0x000 [30:30] tls_en: bool,
        0x000 [27:24] lag_tx_port_affinity: u8,
        0x000 [19:16] prio: u8,
        0x024 [23: 0] transport_domain: u32,
        0x028 [23: 0] underlay_qpn: u32,
        0x02c [23: 0] pd: u32,
    }

    /// Selects the packet fields that are hashed for receive side scaling.
    pub struct HashFields: 0x4 {
        0x000 [31:31] l3_prot_type: bool,
        0x000 [30:30] l4_prot_type: bool,
        0x000 [29: 0] selected_fields: u32,
    }

    /// Transport interface receive: the destination of packets steered to it.
    pub struct TirContext: 0xf0 {
        0x004 [31:28] disp_type: u8,
        0x004 [27:27] tls_en: bool,
        0x010 [27:12] lro_timeout_period_usecs: u16,
        0x010 [11: 8] packet_merge_mask: u8,
        0x010 [ 7: 0] lro_max_ip_payload_size: u8,
        0x01c [23: 0] inline_rqn: u32,
        0x020 [31:31] rx_hash_symmetric: bool,
        0x020 [29:29] tunneled_offload_en: bool,
        0x020 [23: 0] indirect_table: u32,
        0x024 [31:28] rx_hash_fn: u8,
        0x024 [25:24] self_lb_block: u8,
        0x024 [23: 0] transport_domain: u32,
        0x028         rx_hash_toeplitz_key: [u8; 0x28],
        0x050         rx_hash_field_selector_outer: HashFields,
        0x054         rx_hash_field_selector_inner: HashFields,
    }

    /// Receive queue table; the list of receive queue numbers follows.
    pub struct RqtContext: 0xf0 {
        0x014 [26:24] list_q_type: u8,
        0x014 [15: 0] rqt_max_size: u16,
        0x018 [31:31] rq_vhca_id_format: bool,
        0x018 [15: 0] rqt_actual_size: u16,
    }

    /// An entry of a receive queue table.
    pub struct RqNum: 0x4 {
        0x000 [23: 0] rq_num: u32,
    }
}
