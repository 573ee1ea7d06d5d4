//! Helpers shared by tests of several crates: a separate process for a test ([`alone!`]), additional processes
//! ([`Other`]), an end for processes ([`Held`]), a directory ([`Scratch`]), a file in memory ([`memfd()`]), waiting ([`until()`]), an end for spinning threads ([`Stop`]), and the kernel's
//! headers as reference ([`linux`]).
//!
//! `std::thread::scope` waits for its threads even if its body panics. A thread that runs until a flag is set would
//! keep a failed test from ending, unless the body holds a [`Stop`]:
//!
//! ```
//! use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
//!
//! let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
//! let failed = std::panic::catch_unwind(|| {
//!     std::thread::scope(|scope| {
//!         let _stop = testkit::Stop(&over);
//!         scope.spawn(|| while !over.load(Relaxed) { rounds.fetch_add(1, Relaxed); });
//!         panic!("an assertion that does not hold");
//!     })
//! });
//! assert!(failed.is_err() && over.load(Relaxed), "the test failed, and its thread has ended");
//! ```
//!
//! This crate has no dependencies from this repository, so that the tests of every crate can use it.

#[doc(hidden)]
pub mod alone;
pub mod linux;
mod memfd;
mod other;
mod scratch;
mod stop;
mod until;

pub use memfd::memfd;
pub use other::{Held, Other, listen, role, say, until_killed};
pub use scratch::Scratch;
pub use stop::Stop;
pub use until::until;
