//! Virtual time of an adapter: the board that programs share with the conductor. docs/time-inside.md describes it.
//!
//! The board is a file in the adapter's directory. Each thread of a program is a [`Player`] with its own time, which advances by the
//! costs of its calls. When all threads wait, the conductor, a separate process, lets the next event happen.
#![allow(unsafe_code)]

mod board;
mod channel;
mod player;
mod sys;

pub use board::{Bell, Board, Costs, FILE, PLAYERS, State, Written};
pub use player::{Call, Limited, Player, stay_apart};
pub use sys::{OURS, monotonic_ns, realtime_ns, sleep, state};

/// Duration of a cycle of the processor's counter, in picoseconds. No real processor's counter is that fast, so programs that measure it
/// can tell which counter they read.
pub const CYCLE: u64 = 100;
