//! The binary interface: public types, private types, and detection of the loaded libibverbs' layout.

pub mod codes;
pub mod got;
pub mod layout;
pub mod memory;
pub mod objects;
pub mod ops;
pub mod probe;
pub mod public;
pub mod verbs_types;
