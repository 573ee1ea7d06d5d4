//! Multicast group commands: which QPs receive the messages to a group.

cmd_in! {
    /// `ATTACH_TO_MCG` input.
    pub struct AttachToMcgIn: 0x20, uid {
        0x008 [23: 0] qpn: u32,
        0x010         multicast_gid: [u8; 0x10],
    }
}

cmd_out! {
    /// `ATTACH_TO_MCG` output.
    pub struct AttachToMcgOut: 0x10 {}
}

cmd_in! {
    /// `DETACH_FROM_MCG` input.
    pub struct DetachFromMcgIn: 0x20, uid {
        0x008 [23: 0] qpn: u32,
        0x010         multicast_gid: [u8; 0x10],
    }
}

cmd_out! {
    /// `DETACH_FROM_MCG` output.
    pub struct DetachFromMcgOut: 0x10 {}
}
