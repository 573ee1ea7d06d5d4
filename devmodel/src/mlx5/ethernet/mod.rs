//! The Ethernet side: frames other than RDMA, from send queues to the wire, and from the wire through flow tables to
//! receive queues.

mod frame;
mod receive;
mod steer;
mod transmit;

pub(crate) use receive::{arrive, flush, flush_receives};
pub(crate) use transmit::{ring, run};

use hwspec::context::rq_sq;

/// States of a queue without a queue pair, as in its row.
const READY: u32 = rq_sq::READY as u32;
const ERROR: u32 = rq_sq::ERROR as u32;

/// The fields that flow tables can match, for a frame of `len` bytes that begins with `bytes`; `None` if it is not a
/// valid frame.
pub(crate) fn key(bytes: &[u8], len: usize) -> Option<hwspec::context::flow::MatchHeaders> {
    frame::Parts::of(bytes, len).map(|parts| parts.key(bytes))
}
