//! Completion queue context (PRM: `cqc`).
use crate::hw_layout;

hw_layout! {
    /// Completion queue context.
    pub struct CqContext: 0x40 {
        0x000 [31:28] status: u8,
        0x000 [25:25] dbr_umem_valid: bool,
        0x000 [24:24] apu_cq: bool,
        0x000 [23:21] cqe_sz: u8,
        0x000 [20:20] cc: bool,
        0x000 [18:18] scqe_break_moderation_en: bool,
        0x000 [17:17] oi: bool,
        0x000 [16:15] cq_period_mode: u8,
        0x000 [14:14] cqe_comp_en: bool,
        0x000 [13:12] mini_cqe_res_format: u8,
        0x000 [11: 8] st: u8,
        0x000 [ 1: 0] cqe_compression_layout: u8,
        0x004 [31: 0] dbr_umem_id: u32,
        0x008 [11: 6] page_offset: u8,
        0x00c [28:24] log_cq_size: u8,
        0x00c [23: 0] uar_page: u32,
        0x010 [27:16] cq_period: u16,
        0x010 [15: 0] cq_max_count: u16,
        0x014 [31: 0] c_eqn_or_apu_element: u32,
        0x018 [28:24] log_page_size: u8,
        0x020 [23: 0] last_notified_index: u32,
        0x024 [23: 0] last_solicit_index: u32,
        0x028 [23: 0] consumer_counter: u32,
        0x02c [23: 0] producer_counter: u32,
        0x038 [63: 0] dbr_addr: u64,
    }
}
