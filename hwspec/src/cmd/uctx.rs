//! User contexts: the owners of objects.
use super::CmdOut;
use crate::hw_layout;

/// `cap`: may have send queues of raw packets.
pub const RAW_TX: u32 = 1 << 0;
/// `cap`: may have internal resources of the device, including special queue pairs (`uctx_cap` of the capabilities
/// tells if the device has this permission).
pub const INTERNAL_DEV_RES: u32 = 1 << 1;

hw_layout! {
    /// The permissions of a user context.
    pub struct UserContext: 0x30 {
        0x000 [31: 0] cap: u32,
    }
}

commands! {
    0xa04 CreateUctx
        in CreateUctxIn: 0x40 { 0x010 uctx: UserContext }
        out CreateUctxOut: 0x10 { 0x008 [15: 0] uid: u16 }

    0xa06 DestroyUctx in DestroyUctxIn: 0x10 { 0x008 [15: 0] uid: u16 } out CmdOut
}
