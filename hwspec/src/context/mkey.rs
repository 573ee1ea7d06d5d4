//! Memory key context and its translation entries (PRM: `mkc`, `mtt`).
use crate::hw_layout;

/// `mkc.qpn`: usable by every QP of the protection domain.
pub const ANY_QP: u32 = 0xff_ffff;

hw_layout! {
    /// Memory key context.
    pub struct MkeyContext: 0x40 {
        0x000 [30:30] free: bool,
        0x000 [28:26] access_mode_4_2: u8,
        0x000 [18:18] relaxed_ordering_write: bool,
        0x000 [16:16] small_fence_on_rdma_read_response: bool,
        0x000 [15:15] umr_en: bool,
        0x000 [14:14] a: bool,
        0x000 [13:13] rw: bool,
        0x000 [12:12] rr: bool,
        0x000 [11:11] lw: bool,
        0x000 [10:10] lr: bool,
        0x000 [ 9: 8] access_mode_1_0: u8,
        0x000 [ 5: 4] ma_translation_mode: u8,
        0x004 [31: 8] qpn: u32,
        0x004 [ 7: 0] mkey_7_0: u8,
        0x00c [31:31] length64: bool,
        0x00c [30:30] bsf_en: bool,
        0x00c [29:29] sync_umr: bool,
        0x00c [26:26] expected_sigerr_count: bool,
        0x00c [24:24] en_rinval: bool,
        0x00c [23: 0] pd: u32,
        0x010 [63: 0] start_addr: u64,
        0x018 [63: 0] len: u64,
        0x020 [31: 0] bsf_octword_size: u32,
        0x034 [31: 0] translations_octword_size: u32,
        0x038 [ 6: 6] relaxed_ordering_read: bool,
        0x038 [ 4: 0] log_page_size: u8,
    }

    /// Translation entry: one page.
    pub struct Mtt: 0x8 {
        0x000 [31: 0] ptag_63_32: u32,
        0x004 [31: 8] ptag_31_8: u32,
        0x004 [ 1: 1] wr_en: bool,
        0x004 [ 0: 0] rd_en: bool,
    }
}
