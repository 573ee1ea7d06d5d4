//! Queue pair context (PRM: `qpc`, `ads`).
use super::{PathMigState, QpState, ServiceType};
use crate::hw_layout;

/// `qpc.rq_type`: the queue pair has a receive queue.
pub const RQ_OWN: u8 = 0;
/// `qpc.rq_type`: a shared receive queue.
pub const RQ_SHARED: u8 = 1;
/// `qpc.rq_type`: no receive queue.
pub const RQ_NONE: u8 = 3;
/// `user_index` of QPs and SRQs without one: CQEs contain the number instead.
pub const NO_USER_INDEX: u32 = 0xff_ffff;

hw_layout! {
    /// Address path: the path from a QP to its peer.
    pub struct AddressPath: 0x2c {
        0x000 [31:31] fl: bool,
        0x000 [30:30] free_ar: bool,
        0x000 [15: 0] pkey_index: u16,
        0x004 [23:23] grh: bool,
        0x004 [22:16] mlid: u8,
        0x004 [15: 0] rlid: u16,
        0x008 [31:27] ack_timeout: u8,
        0x008 [23:16] src_addr_index: u8,
        0x008 [11: 8] stat_rate: u8,
        0x008 [ 7: 0] hop_limit: u8,
        0x00c [27:20] tclass: u8,
        0x00c [19: 0] flow_label: u32,
        0x010         rgid_rip: [u8; 0x10],
        0x020 [27:27] f_dscp: bool,
        0x020 [26:26] f_ecn: bool,
        0x020 [24:24] f_eth_prio: bool,
        0x020 [23:22] ecn: u8,
        0x020 [21:16] dscp: u8,
        0x020 [15: 0] udp_sport: u16,
        0x024 [31:31] dei_cfi: bool,
        0x024 [30:28] eth_prio: u8,
        0x024 [27:24] sl: u8,
        0x024 [23:16] vhca_port_num: u8,
        0x024 [15: 0] rmac_47_32: u16,
        0x028 [31: 0] rmac_31_0: u32,
    }
}

hw_layout! {
    /// Queue pair context, owned by the device. The driver writes all of it with `CREATE_QP` and individual fields with
    /// the state transition commands.
    pub struct QpContext: 0xe8 {
        0x000 [31:28] state: QpState,
        0x000 [27:24] lag_tx_port_affinity: u8,
        0x000 [23:16] st: ServiceType,
        0x000 [13:13] isolate_vl_tc: bool,
        0x000 [12:11] pm_state: PathMigState,
        0x000 [ 9: 8] req_e2e_credit_mode: u8,
        0x000 [ 7: 4] offload_type: u8,
        0x000 [ 3: 2] end_padding_mode: u8,
        0x004 [31:31] wq_signature: bool,
        0x004 [30:30] block_lb_mc: bool,
        0x004 [29:29] atomic_like_write_en: bool,
        0x004 [28:28] latency_sensitive: bool,
        0x004 [26:26] drain_sigerr: bool,
        0x004 [23: 0] pd: u32,
        0x008 [31:29] mtu: u8,
        0x008 [28:24] log_msg_max: u8,
        0x008 [22:19] log_rq_size: u8,
        0x008 [18:16] log_rq_stride: u8,
        0x008 [15:15] no_sq: bool,
        0x008 [14:11] log_sq_size: u8,
        0x008 [ 7: 6] ts_format: u8,
        0x008 [ 4: 4] rlky: bool,
        0x008 [ 3: 0] ulp_stateless_offload_mode: u8,
        0x00c [31:24] counter_set_id: u8,
        0x00c [23: 0] uar_page: u32,
        0x010 [23: 0] user_index: u32,
        0x014 [28:24] log_page_size: u8,
        0x014 [23: 0] remote_qpn: u32,
        0x018         primary_address_path: AddressPath,
        0x044         secondary_address_path: AddressPath,
        0x070 [31:28] log_ack_req_freq: u8,
        0x070 [23:21] log_sra_max: u8,
        0x070 [18:16] retry_count: u8,
        0x070 [15:13] rnr_retry: u8,
        0x070 [11:11] fre: bool,
        0x070 [10: 8] cur_rnr_retry: u8,
        0x070 [ 7: 5] cur_retry_count: u8,
        0x078 [23: 0] next_send_psn: u32,
        0x07c [28:24] log_num_dci_stream_channels: u8,
        0x07c [23: 0] cqn_snd: u32,
        0x080 [28:24] log_num_dci_errored_streams: u8,
        0x080 [23: 0] deth_sqpn: u32,
        0x088 [23: 0] last_acked_psn: u32,
        0x08c [23: 0] ssn: u32,
        0x090 [23:21] log_rra_max: u8,
        0x090 [19:16] atomic_mode: u8,
        0x090 [15:15] rre: bool,
        0x090 [14:14] rwe: bool,
        0x090 [13:13] rae: bool,
        0x090 [11: 6] page_offset: u8,
        0x090 [ 2: 2] cd_slave_receive: bool,
        0x090 [ 1: 1] cd_slave_send: bool,
        0x090 [ 0: 0] cd_master: bool,
        0x094 [28:24] min_rnr_nak: u8,
        0x094 [23: 0] next_rcv_psn: u32,
        0x098 [23: 0] xrcd: u32,
        0x09c [23: 0] cqn_rcv: u32,
        0x0a0 [63: 0] dbr_addr: u64,
        0x0a8 [31: 0] q_key: u32,
        0x0ac [26:24] rq_type: u8,
        0x0ac [23: 0] srqn_rmpn_xrqn: u32,
        0x0b0 [23: 0] rmsn: u32,
        0x0b4 [31:16] hw_sq_wqebb_counter: u16,
        0x0b4 [15: 0] sw_sq_wqebb_counter: u16,
        0x0b8 [31: 0] hw_rq_counter: u32,
        0x0bc [31: 0] sw_rq_counter: u32,
        0x0c4 [16:16] cgs: bool,
        0x0c4 [15: 8] cs_req: u8,
        0x0c4 [ 7: 0] cs_res: u8,
        0x0c8 [63: 0] dc_access_key: u64,
        0x0d0 [28:28] dbr_umem_valid: bool,
        0x0e4 [31: 0] dbr_umem_id: u32,
    }
}
