//! The transport alone: two endpoints, no adapter.

mod ends;
mod names;
mod orders;
mod rows;
mod world;
