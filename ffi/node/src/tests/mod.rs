//! A node, in one process and in several.

mod arena;
pub mod bed;
mod beside;
mod copies;
mod crowd;
mod damage;
mod death;
mod lend;
mod node;
mod room;
mod uplink;
