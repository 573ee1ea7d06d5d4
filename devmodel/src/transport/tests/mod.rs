//! The transport alone: two endpoints, no adapter.

mod names;
mod orders;
mod world;
