//! Multicast group commands: membership of QPs in groups.
use super::CmdOut;

commands! {
    0x806 AttachToMcg
        in AttachToMcgIn: 0x20, uid {
            0x008 [23: 0] qpn: u32,
            0x010         multicast_gid: [u8; 0x10],
        }
        out CmdOut

    0x807 DetachFromMcg
        in DetachFromMcgIn: 0x20, uid {
            0x008 [23: 0] qpn: u32,
            0x010         multicast_gid: [u8; 0x10],
        }
        out CmdOut
}
