//! The Ethernet side: frames other than RDMA, from send queues to the wire, and from the wire through flow tables to
//! receive queues.

mod frame;
mod receive;
mod steer;
mod transmit;

pub(crate) use receive::{arrive, flush, flush_receives};
pub(crate) use transmit::{ring, run};

/// States of the context of a queue without a queue pair.
const READY: u32 = 1;
const ERROR: u32 = 3;

/// The fields that flow tables can match, for a frame of `len` bytes that begins with `bytes`; `None` if it is not a
/// valid frame.
pub(crate) fn key(bytes: &[u8], len: usize) -> Option<hwspec::context::flow::MatchHeaders> {
    frame::Parts::of(bytes, len).map(|parts| parts.key(bytes))
}
