//! The InfiniBand transport (IBTA Vol. 1 chapter 9) without an adapter around it.
//!
//! [`Requester`] and [`Responder`] are the two halves of a connection: plain rows with the protocol rules as methods.
//! `Requests` and `Responses` declare the services that the rules need from their environment. An adapter provides
//! payload, completions and counters; a test provides two endpoints and a number for the time. This module does not know
//! how an adapter is programmed or how it keeps its state; [`Status`] is the transport's own type for the outcome of a
//! request.

mod congestion;
mod datagram;
mod duplicate;
mod replies;
mod request;
mod requester;
mod responder;
mod status;
mod timers;
mod unreliable;

#[cfg(test)]
mod tests;

pub use congestion::{Congestion, Dcqcn, Notifier};
pub use request::{Kind, LOG_MAX_MESSAGE, ReadResource, Request};
pub use requester::Requester;
pub use responder::{Message, Responder, Rights};
pub use status::{Event, Status};
pub use timers::{Timer, Timers};

pub(crate) use datagram::{Datagram, Dropped, Receiver, check as check_datagram, qkey_of};
pub(crate) use replies::{Reply, finish, next_reply, refuse_reply, replied};
pub(crate) use request::{MAX_MESSAGE, Order, Outgoing};
pub(crate) use requester::{
    AckTimer, Requests, acknowledge, acknowledgement_timeout, answer, answered, congestion_notified, deliver,
    read_response, read_responses, settle, start_timer,
};
pub(crate) use responder::{Packet, Refusal, Responses, access, request, train};
pub(crate) use unreliable::{complete_sent, unreliable_request};
