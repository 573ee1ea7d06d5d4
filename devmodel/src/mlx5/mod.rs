//! The parts that make the chip a ConnectX for its drivers: the pipeline from doorbell to completion, and events.
//!
//! [`job::Job`] is the overview; the files below follow its structure.

pub mod job;
pub(crate) mod step;

mod acks;
mod arrive;
pub(crate) mod completion;
mod congestion;
mod datagram;
mod doorbell;
pub(crate) mod eswitch;
pub(crate) mod ethernet;
pub(crate) mod event;
mod fetch;
mod flow;
pub(crate) mod flush;
mod infiniband;
pub(crate) mod interrupt;
pub(crate) mod lists;
pub(crate) mod pace;
mod packet;
pub(crate) mod port;
mod receive;
mod received;
mod reliable;
mod requester;
mod responder;
mod responses;
mod service;
pub(crate) mod settle;
mod srq;
mod status;
mod timers;
mod turn;
mod uc;
mod umr;
pub(crate) mod work;
mod xrc;

#[cfg(test)]
mod tests;

pub(crate) use arrive::{arrive, arrive_in_hand, arrive_in_train};
pub(crate) use datagram::special_qps;
pub use job::Job;
pub(crate) use lists::bytes as bytes_of;
pub(crate) use received::Packet;
pub(crate) use status::{Failure, counter_of, counter_of_dropped, counter_of_event, event_of};
pub(crate) use step::CommandCompletion;
pub use step::{Frame, Payload, Step};
pub(crate) use turn::{expire, flush_qp, ring, take_turn};
