//! RDMA extended transport header (IBTA 9.2.6).
use crate::hw_layout;

hw_layout! {
    /// RETH: the destination of an RDMA WRITE or the source of a READ.
    pub struct Reth: 16 {
        0x00 [63: 0] va: u64,
        0x08 [31: 0] rkey: u32,
        /// Length of the whole message in bytes, at most 2^31.
        0x0c [31: 0] dma_len: u32,
    }
}
