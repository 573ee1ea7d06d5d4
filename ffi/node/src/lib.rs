//! The simulated node: which devices it has, where it lives, and how unmodified programs come to see it.

pub mod devices;
pub mod functions;
pub mod launcher;
pub mod place;
pub mod runtime;
