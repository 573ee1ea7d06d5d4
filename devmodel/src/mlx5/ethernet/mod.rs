//! The Ethernet side: frames that are not RDMA, from send queues to the wire and from the wire through flow tables to
//! receive queues.

mod checksum;
mod flush;
mod frame;
mod hash;
mod receive;
mod segment;
mod steer;
mod transmit;

pub(crate) use flush::{begin as flush_receives, flush};
pub(crate) use receive::arrive;
pub(crate) use transmit::{ring, run};
