//! The runtime, in one process and in several.

mod arena;
pub(crate) mod bed;
mod copies;
mod death;
mod lend;
mod link;
mod node;
mod verbs;
