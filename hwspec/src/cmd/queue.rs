//! The command queue: its entries and mailboxes.
use crate::hw_layout;

/// Transport type of an entry: PCIe command interface.
pub const KIND_PCIE: u8 = 7;
/// Bytes of input or output held in the entry itself.
pub const INLINE: usize = 0x10;
/// Bytes of data in a mailbox.
pub const BOX_DATA: usize = 0x200;
/// Longest input or output: the page list of the largest region.
pub const MAX_LEN: usize = 16 << 20;

hw_layout! {
    /// Command queue entry, 64 bytes.
    pub struct CmdQueueEntry: 0x40 {
        0x000 [31:24] kind: u8,
        0x004 [31: 0] input_length: u32,
        0x008 [31: 0] input_mailbox_pointer_63_32: u32,
        0x00c [31: 9] input_mailbox_pointer_31_9: u32,
        0x010         command_input_inline_data: [u8; 0x10],
        0x020         command_output_inline_data: [u8; 0x10],
        0x030 [31: 0] output_mailbox_pointer_63_32: u32,
        0x034 [31: 9] output_mailbox_pointer_31_9: u32,
        0x038 [31: 0] output_length: u32,
        0x03c [31:24] token: u8,
        0x03c [23:16] signature: u8,
        0x03c [ 7: 1] status: u8,
        0x03c [ 0: 0] ownership: bool,
    }

    /// Mailbox block: 512 bytes of data and a link to the next.
    pub struct CmdMailbox: 0x240 {
        0x000         mailbox_data: [u8; 0x200],
        0x230 [31: 0] next_pointer_63_32: u32,
        0x234 [31:10] next_pointer_31_10: u32,
        0x238 [31: 0] block_number: u32,
        0x23c [23:16] token: u8,
        0x23c [15: 8] ctrl_signature: u8,
        0x23c [ 7: 0] signature: u8,
    }
}
