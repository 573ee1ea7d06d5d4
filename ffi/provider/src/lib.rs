//! The rdma-core provider: unmodified verbs programs reach the ironverbs devices through the stock libibverbs.
//!
//! One shared object serves the releases 36 to 65; what differs between them is found out at load time ([`abi`]). Programs
//! call it through libibverbs; Rust programs use the `driver` itself. Public is only what its own tests judge:
//!
//! ```
//! use ironverbs_provider::abi::{ops::{OpsTable, RELEASES}, probe::{Layout, Library}};
//!
//! // Where an operation lies in the private table of operations depends on the release.
//! let slots: Vec<_> = RELEASES.iter().map(|release| OpsTable::of(*release).slot("reg_mr_ex")).collect();
//! assert!(slots.first() == Some(&None) && slots.last() != Some(&None), "{slots:?}");
//!
//! // Which release a libibverbs is, it shows at work. This process has loaded none.
//! for library in Library::loaded() {
//!     let layout = Layout::probe(library.map_err(|(_, what)| what)?)?;
//!     println!("{} operations, since v{}", layout.ops.len(), layout.ops.since);
//! }
//! # Ok::<(), String>(())
//! ```
//!
//! Read in this order: `register` (loading), `matching`, `open`, `table` (what is offered), then one file per object;
//! `post` and `poll` are the hot ones.
#![allow(unsafe_code)]

pub mod abi;
mod ah;
mod channel;
mod clock;
mod context;
mod convert;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod events;
mod exports;
mod flow;
mod guard;
mod huge;
mod import;
mod matching;
mod mcast;
mod mlx5dv;
mod mr;
mod mw;
mod open;
mod parent_domain;
mod pd;
mod pipe;
mod poll;
mod post;
mod posting;
mod qp;
mod qp_ex;
mod qp_verbs;
mod query;
mod rdma_cm;
mod register;
mod registration;
mod rights;
mod srq;
mod table;
mod users;
mod wq;
mod xrc;
