//! The runtime, in one process and in several.

mod arena;
pub(crate) mod bed;
mod copies;
mod crowd;
mod damage;
mod death;
mod lend;
mod link;
mod node;
mod room;
mod verbs;
