//! Virtual time of a node: the board that its programs share with their conductor, docs/time-inside.md.
//!
//! The board is a file in the node's directory. Each thread of a program is a [`Player`] with a time of its own, which goes on by what its calls
//! cost. Threads that wait say so, and the conductor, a process of its own, lets the next thing happen when all do.
#![allow(unsafe_code)]

mod board;
mod channel;
mod player;
mod sys;

pub use board::{Bell, Board, Costs, FILE, PLAYERS, State, Written};
pub use player::{Call, Limited, Player, stay_apart};
pub use sys::{OURS, monotonic_ns, realtime_ns, sleep, state};

/// Picoseconds of a cycle of the processor's counter: so fast is no processor that has another counter, so programs that measure it see which
/// one they have.
pub const CYCLE: u64 = 100;
