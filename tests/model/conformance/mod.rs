//! The transport, row by row: every test names the row of the behaviour table (`docs/conformance.md`) that it checks, in its function name
//! and in its first line of documentation. Expected values are those of the table and of the InfiniBand architecture specification, never
//! the model's.

mod access;
mod acks;
mod atomics;
mod common;
mod completions;
mod counters;
mod datagrams;
mod drops;
mod duplicates;
mod ecn;
mod errors_and_flush;
mod extended;
mod fences_and_order;
mod immediate_and_invalidate;
mod lengths;
mod naks;
mod psn;
mod reads;
mod registration;
mod reset;
mod retries;
mod rnr;
mod rows;
mod shared_receive;
mod source;
mod states;
mod torture;
mod unreliable;
mod windows;
