//! What tests of several crates share: a process of a test's own ([`alone!`]), others beside it ([`Other`]), a directory
//! ([`Scratch`]), and an end to threads that spin ([`Stop`]).
//!
//! Nothing of ours is among its dependencies, so that the tests of every crate can use it.

#[doc(hidden)]
pub mod alone;
mod other;
mod scratch;
mod stop;

pub use other::{Other, listen, role, say, until_killed};
pub use scratch::Scratch;
pub use stop::Stop;
