//! Immediate data and invalidate headers (IBTA 9.2.10, 9.4.1.1.3).
use crate::hw_layout;

hw_layout! {
    /// ImmDt: 32 bits for the receive completion.
    pub struct ImmDt: 4 {
        0x00 [31: 0] imm: u32,
    }

    /// IETH: the rkey to be invalidated by the receiver.
    pub struct Ieth: 4 {
        0x00 [31: 0] rkey: u32,
    }
}
