//! Device memory commands: memory in the adapter, accessed through BAR0.
use super::CmdOut;

/// log2 of the unit of device memory alignments, in bytes: field and capability hold the log2 of a multiple of it.
pub const LOG_ALIGNMENT_UNIT: u32 = 6;

commands! {
    0x205 AllocMemic
        in AllocMemicIn: 0x20 {
            /// log2, in units of [`LOG_ALIGNMENT_UNIT`].
            0x00c [ 7: 0] log_memic_addr_alignment: u8,
            /// Start of the range in BAR0 to allocate from.
            0x010 [63: 0] range_start_addr: u64,
            0x018 [31: 0] range_size: u32,
            0x01c [31: 0] memic_size: u32,
        }
        out AllocMemicOut: 0x10 {
            /// Address in BAR0.
            0x008 [63: 0] memic_start_addr: u64,
        }

    0x206 DeallocMemic
        in DeallocMemicIn: 0x20 {
            0x010 [63: 0] memic_start_addr: u64,
            0x018 [31: 0] memic_size: u32,
        }
        out CmdOut
}
