//! What tests of several crates share: a process of a test's own ([`alone!`]), and an end to threads that spin ([`Stop`]).
//!
//! Nothing of ours is among its dependencies, so that the tests of every crate can use it.

#[doc(hidden)]
pub mod alone;
mod stop;

pub use stop::Stop;
