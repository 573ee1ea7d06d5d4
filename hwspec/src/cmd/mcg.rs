//! Multicast group commands: which QPs take what is sent to a group.
use crate::hw_layout;

hw_layout! {
    /// `ATTACH_TO_MCG` input.
    pub struct AttachToMcgIn: 0x20 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010         multicast_gid: [u8; 0x10],
    }
}

hw_layout! {
    /// `ATTACH_TO_MCG` output.
    pub struct AttachToMcgOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}

hw_layout! {
    /// `DETACH_FROM_MCG` input.
    pub struct DetachFromMcgIn: 0x20 {
        0x000 [31:16] opcode: u16,
        0x000 [15: 0] uid: u16,
        0x004 [15: 0] op_mod: u16,
        0x008 [23: 0] qpn: u32,
        0x010         multicast_gid: [u8; 0x10],
    }
}

hw_layout! {
    /// `DETACH_FROM_MCG` output.
    pub struct DetachFromMcgOut: 0x10 {
        0x000 [31:24] status: u8,
        0x004 [31: 0] syndrome: u32,
    }
}
