//! Datagram and XRC extended transport headers (IBTA 9.2.5, annex A14).
use crate::handle::{Qpn, Srqn};
use crate::hw_layout;

hw_layout! {
    /// DETH of a UD packet.
    pub struct Deth: 8 {
        0x00 [31: 0] qkey: u32,
        0x04 [23: 0] src_qp: Qpn,
    }

    /// XRCETH: the shared receive queue targeted by a request of an XRC initiator.
    pub struct XrcEth: 4 {
        0x00 [23: 0] srqn: Srqn,
    }
}
