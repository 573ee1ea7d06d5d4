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
//!
//! # Duties of callers of verbs
//!
//! Verbs take raw pointers from programs. Their `SAFETY` comments name these clauses:
//!
//! - **V1, live**: a pointer to an object was returned by the verb that makes such objects, here or in libibverbs (devices, channels),
//!   and was not yet given to the verb that ends it. Programs uphold it, as the manual page of each verb says (ibv_create_qp(3) and its
//!   like); libibverbs hands the pointer on as it is.
//! - **V2, ours**: what the program has is the first member of our structure, which is `repr(C)`, and the pointer is that of the whole
//!   structure, from `Box::into_raw`. Our context follows the library's instead ([`context`]). The verb that makes the object upholds it.
//! - **V3, kept**: the objects that an object names in its public structure (its context, PD, CQs and so on) live as long as it does. We
//!   uphold it: each holds a count of them ([`users`]), and none is ended while it is counted.
//! - **V4, arguments**: structures, lists and strings among the arguments are whole, aligned and as long as they say, and nobody else
//!   changes them during the call; room for answers is writable. Members that a `comp_mask` does not name are not read. Programs
//!   uphold it, by the manual page of the verb.
//! - **V5, last**: whoever ends an object has no other call under way with it, and makes none afterwards unless it was refused. Programs
//!   uphold it.
//! - **V6, one context**: objects that one call names belong to one context, so all are ours if one is. Programs uphold it, and libibverbs
//!   refuses most calls that do not.
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
mod ours;
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
