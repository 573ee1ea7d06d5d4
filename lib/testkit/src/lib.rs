//! Helpers that tests of several crates share: a process of a test's own ([`alone!`]), others beside it ([`Other`]), a directory
//! ([`Scratch`]), an end to threads that spin ([`Stop`]), and the kernel's headers as a judge ([`linux`]).
//!
//! `std::thread::scope` waits for its threads even if its body panics. A thread that runs until a flag is set would keep
//! a test that has failed from ending, unless the body holds a [`Stop`]:
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
//! Nothing of ours is among its dependencies, so that the tests of every crate can use it.

#[doc(hidden)]
pub mod alone;
pub mod linux;
mod other;
mod scratch;
mod stop;

pub use other::{Other, listen, role, say, until_killed};
pub use scratch::Scratch;
pub use stop::Stop;
