//! Event queue context (PRM: `eqc`).
use crate::hw_layout;

hw_layout! {
    /// Event queue context.
    pub struct EqContext: 0x40 {
        0x000 [31:28] status: u8,
        0x000 [18:18] ec: bool,
        0x000 [17:17] oi: bool,
        0x000 [11: 8] st: u8,
        0x008 [11: 6] page_offset: u8,
        0x00c [28:24] log_eq_size: u8,
        0x00c [23: 0] uar_page: u32,
        0x014 [11: 0] intr: u16,
        0x018 [28:24] log_page_size: u8,
        0x028 [23: 0] consumer_counter: u32,
        0x02c [23: 0] producer_counter: u32,
    }
}
