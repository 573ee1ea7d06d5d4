//! What makes the chip a ConnectX to its drivers.

pub(crate) mod event;
mod status;

pub(crate) use status::{Failure, counter_of, counter_of_event, event_of};
