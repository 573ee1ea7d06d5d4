//! The parts that make the chip a ConnectX for its drivers: the pipeline from doorbell to completion, and events.
//!
//! [`job::Job`] is the overview; the files below follow its structure.

pub mod job;
pub(crate) mod step;

mod acks;
mod arrive;
pub(crate) mod completion;
mod connected;
mod datagram;
pub(crate) mod eswitch;
pub(crate) mod ethernet;
pub(crate) mod event;
mod fetch;
pub(crate) mod flush;
mod infiniband;
pub(crate) mod lists;
mod multicast;
mod packet;
pub(crate) mod rates;
mod receive;
mod requester;
mod responder;
mod status;
mod turn;
mod umr;
pub(crate) mod work;

#[cfg(test)]
mod tests;

pub(crate) use acks::drained;
pub(crate) use arrive::{Packet, arrive, arrive_in_hand, arrive_in_train};
pub use job::Job;
pub(crate) use lists::bytes as bytes_of;
pub(crate) use multicast::special_qps;
pub(crate) use status::{Failure, counter_of, counter_of_dropped, counter_of_event, event_of};
pub(crate) use step::CommandCompletion;
pub use step::{Frame, Payload, Step};
pub(crate) use turn::{expire, flush_qp, ring, take_turn};
