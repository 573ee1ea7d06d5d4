//! A node, in one process and in several.

mod arena;
pub mod bed;
mod copies;
mod crowd;
mod damage;
mod death;
mod lend;
mod node;
mod room;
mod uplink;
