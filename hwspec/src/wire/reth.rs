//! RDMA extended transport header (IBTA 9.2.6).
use crate::hw_layout;

hw_layout! {
    /// RETH: where an RDMA WRITE goes or a READ comes from.
    pub struct Reth: 16 {
        0x00 [63: 0] va: u64,
        0x08 [31: 0] rkey: u32,
        /// Bytes of the whole message; at most 2^31.
        0x0c [31: 0] dma_len: u32,
    }
}
