//! Device memory commands: memory within the adapter, seen through BAR0.
use crate::hw_layout;

hw_layout! {
    /// `ALLOC_MEMIC` input.
    pub struct AllocMemicIn: 0x20 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x00c [ 7: 0] log_memic_addr_alignment: u8,
        /// Where in BAR0 it may lie.
        0x010 [63: 0] range_start_addr: u64,
        0x018 [31: 0] range_size: u32,
        0x01c [31: 0] memic_size: u32,
    }
}

hw_layout! {
    /// `ALLOC_MEMIC` output.
    pub struct AllocMemicOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
        /// Where in BAR0 it lies.
        0x008 [63: 0] memic_start_addr: u64,
    }
}

hw_layout! {
    /// `DEALLOC_MEMIC` input.
    pub struct DeallocMemicIn: 0x20 {
        0x000 [31:16] opcode: u16,
        0x004 [15: 0] op_mod: u16,
        0x010 [63: 0] memic_start_addr: u64,
        0x018 [31: 0] memic_size: u32,
    }
}

hw_layout! {
    /// `DEALLOC_MEMIC` output.
    pub struct DeallocMemicOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
