//! The binary interface: public types, private types, and finding out which layout the loaded libibverbs has.

pub mod codes;
pub mod got;
pub mod memory;
pub mod objects;
pub mod ops;
pub mod probe;
pub mod public;
pub mod verbs_types;
