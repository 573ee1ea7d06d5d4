//! The transport alone: two endpoints, no adapter.

mod endpoints;
mod explorer;
mod names;
mod pair;
mod rows;
