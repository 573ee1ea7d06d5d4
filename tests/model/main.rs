//! The model in logical time: time advances only when a test lets it, so no test depends on chance or on the machine's load.

mod commands;
mod conformance;
mod driver_on_model;
mod ethernet;
mod infiniband;
mod schedulers;
mod snapshot;
mod soak;
mod stopped;
