//! Work queue descriptor shared by RQ, SQ, RMP and SRQ contexts.
use crate::hw_layout;

/// `wq.wq_type`: each WQE links to the next.
pub const LINKED_LIST: u8 = 0;
/// `wq.wq_type`: a ring.
pub const CYCLIC: u8 = 1;

hw_layout! {
    /// Work queue: type, page geometry and doorbell record. The page list (`pas`) follows it.
    pub struct WorkQueue: 0xc0 {
        0x000 [31:28] wq_type: u8,
        0x000 [27:27] wq_signature: bool,
        0x000 [26:25] end_padding_mode: u8,
        0x000 [24:24] cd_slave: bool,
        0x004 [31:31] hds_skip_first_sge: bool,
        0x004 [30:28] log2_hds_buf_size: u8,
        0x004 [20:16] page_offset: u8,
        0x004 [15: 0] lwm: u16,
        0x008 [23: 0] pd: u32,
        0x00c [23: 0] uar_page: u32,
        0x010 [63: 0] dbr_addr: u64,
        0x018 [31: 0] hw_counter: u32,
        0x01c [31: 0] sw_counter: u32,
        0x020 [19:16] log_wq_stride: u8,
        0x020 [12: 8] log_wq_pg_sz: u8,
        0x020 [ 4: 0] log_wq_sz: u8,
        0x024 [31:31] dbr_umem_valid: bool,
        0x024 [30:30] wq_umem_valid: bool,
        0x024 [28:24] log_hairpin_num_packets: u8,
        0x024 [20:16] log_hairpin_data_sz: u8,
        0x024 [11: 8] log_wqe_num_of_strides: u8,
        0x024 [ 7: 7] two_byte_shift_en: bool,
        0x024 [ 2: 0] log_wqe_stride_size: u8,
        0x028 [31: 0] dbr_umem_id: u32,
        0x02c [31: 0] wq_umem_id: u32,
        0x030 [63: 0] wq_umem_offset: u64,
        0x038 [31: 0] headers_mkey: u32,
        0x03c [31:31] shampo_enable: bool,
        0x03c [26:24] log_reservation_size: u8,
        0x03c [18:16] log_max_num_of_packets_per_reservation: u8,
        0x03c [ 9: 8] log_headers_entry_size: u8,
        0x03c [ 3: 0] log_headers_buffer_entry_num: u8,
    }
}
