//! The rdma-core provider: unmodified verbs programs reach the ironverbs devices through the stock libibverbs.
//!
//! One shared object serves the releases 36 to 65; what differs between them is found out at load time ([`abi`]).
#![allow(unsafe_code)]

pub mod abi;
