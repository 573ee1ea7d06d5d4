//! Contexts of send and receive queues without a queue pair.
use crate::context::wq::WorkQueue;
use crate::hw_layout;

/// State of a send or receive queue: reset.
pub const RESET: u8 = 0;
/// State of a send or receive queue: ready.
pub const READY: u8 = 1;
/// State of a send or receive queue: error.
pub const ERROR: u8 = 3;

hw_layout! {
    /// Send queue context; the page list follows the work queue.
    pub struct SqContext: 0xf0 {
        0x000 [31:31] rlky: bool,
        0x000 [30:30] cd_master: bool,
        0x000 [29:29] fre: bool,
        0x000 [28:28] flush_in_error_en: bool,
        0x000 [27:27] allow_multi_pkt_send_wqe: bool,
        0x000 [26:24] min_wqe_inline_mode: u8,
        0x000 [23:20] state: u8,
        0x000 [19:19] reg_umr: bool,
        0x000 [18:18] allow_swp: bool,
        0x000 [17:17] hairpin: bool,
        0x000 [ 5: 4] ts_format: u8,
        0x004 [23: 0] user_index: u32,
        0x008 [23: 0] cqn: u32,
        0x00c [23: 0] hairpin_peer_rq: u32,
        0x010 [15: 0] hairpin_peer_vhca: u16,
        0x018 [23: 0] ts_cqe_to_dest_cqn: u32,
        0x01c [15: 0] packet_pacing_rate_limit_index: u16,
        0x020 [31:16] tis_lst_sz: u16,
        0x020 [15: 0] qos_queue_group_id: u16,
        0x02c [23: 0] tis_num_0: u32,
        0x030         wq: WorkQueue,
    }

    /// Receive queue context; the page list follows the work queue.
    pub struct RqContext: 0xf0 {
        0x000 [31:31] rlky: bool,
        0x000 [30:30] delay_drop_en: bool,
        0x000 [29:29] scatter_fcs: bool,
        0x000 [28:28] vsd: bool,
        0x000 [27:24] mem_rq_type: u8,
        0x000 [23:20] state: u8,
        0x000 [18:18] flush_in_error_en: bool,
        0x000 [17:17] hairpin: bool,
        0x000 [ 5: 4] ts_format: u8,
        0x004 [23: 0] user_index: u32,
        0x008 [23: 0] cqn: u32,
        0x00c [31:24] counter_set_id: u8,
        0x010 [23: 0] rmpn: u32,
        0x014 [23: 0] hairpin_peer_sq: u32,
        0x018 [15: 0] hairpin_peer_vhca: u16,
        0x024 [25:24] shampo_no_match_alignment_granularity: u8,
        0x024 [17:16] shampo_match_criteria_type: u8,
        0x024 [15: 0] reservation_timeout: u16,
        0x030         wq: WorkQueue,
    }
}
