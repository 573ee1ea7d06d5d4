//! Atomic extended transport headers (IBTA 9.2.7, 9.2.9).
use crate::hw_layout;

hw_layout! {
    /// AtomicETH: operands of an atomic request.
    pub struct AtomicEth: 28 {
        0x00 [63: 0] va: u64,
        0x08 [31: 0] rkey: u32,
        /// The value to swap in, or to add.
        0x0c [63: 0] swap_add: u64,
        0x14 [63: 0] compare: u64,
    }

    /// AtomicAckETH: the previous value of the memory.
    pub struct AtomicAckEth: 8 {
        0x00 [63: 0] original: u64,
    }
}
