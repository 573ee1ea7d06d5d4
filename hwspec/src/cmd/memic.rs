//! Device memory commands: memory within the adapter, seen through BAR0.
use super::CmdOut;

/// log2 of the bytes in which alignments of device memory count: field and capability have the log2 of a multiple of it.
pub const LOG_ALIGNMENT_UNIT: u32 = 6;

commands! {
    0x205 AllocMemic
        in AllocMemicIn: 0x20 {
            /// log2, in units of [`LOG_ALIGNMENT_UNIT`].
            0x00c [ 7: 0] log_memic_addr_alignment: u8,
            /// Where in BAR0 it may lie.
            0x010 [63: 0] range_start_addr: u64,
            0x018 [31: 0] range_size: u32,
            0x01c [31: 0] memic_size: u32,
        }
        out AllocMemicOut: 0x10 {
            /// Where in BAR0 it lies.
            0x008 [63: 0] memic_start_addr: u64,
        }

    0x206 DeallocMemic
        in DeallocMemicIn: 0x20 {
            0x010 [63: 0] memic_start_addr: u64,
            0x018 [31: 0] memic_size: u32,
        }
        out CmdOut
}
