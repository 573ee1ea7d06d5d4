//! The rdma-core provider: it gives unmodified verbs programs access to ironverbs devices through the stock libibverbs.
//!
//! One shared object supports releases 36 to 65; their differences are detected at load time ([`abi`]). Programs call it through
//! libibverbs; Rust programs use the `driver` crate directly. Only the items that its own tests check are public:
//!
//! ```
//! use ironverbs_provider::abi::{ops::{OpsTable, RELEASES}, probe::{Layout, Library}};
//!
//! // The slot of an operation in the private table depends on the release.
//! let slots: Vec<_> = RELEASES.iter().map(|release| OpsTable::of(*release).slot("reg_mr_ex")).collect();
//! assert!(slots.first() == Some(&None) && slots.last() != Some(&None), "{slots:?}");
//!
//! // The release of a libibverbs is detected by its behaviour. This process has loaded none.
//! for library in Library::loaded() {
//!     let layout = Layout::probe(library.map_err(|(_, what)| what)?)?;
//!     println!("{} operations, since v{}", layout.ops.len(), layout.ops.since);
//! }
//! # Ok::<(), String>(())
//! ```
//!
//! Read in this order: `register` (loading), `matching`, `open`, `table` (the supported operations), then one file per object; `post` and
//! `poll` are the hot path.
//!
//! # Obligations of callers of verbs
//!
//! Verbs take pointers from programs. The types of their arguments ([`ours`]) and the `SAFETY` comments refer to these clauses:
//!
//! - **V1, live**: a pointer to an object was returned by the verb that creates such objects, here or in libibverbs (devices, channels),
//!   and has not been passed to the verb that destroys it. Programs uphold it, as the manual page of each verb says (ibv_create_qp(3) and
//!   the like); libibverbs passes the pointer on unchanged.
//! - **V2, ours**: the program's pointer is to the first member of a structure of this provider, which is `repr(C)`, and has the provenance
//!   of the whole structure, from its box. Contexts are the exception: the provider's part follows the library's ([`context`]). The
//!   verb that creates the object upholds it.
//! - **V3, kept**: the objects that an object refers to in its public structure (its context, PD, CQs and so on) live as long as it does.
//!   The provider upholds it: each object holds a count on them ([`users`]), and no object is destroyed while its count is not zero.
//! - **V4, arguments**: structures, lists and strings among the arguments are complete, aligned and as long as they say, and are not
//!   changed by others during the call; output buffers are writable. Members that a `comp_mask` does not name are not read. Programs uphold
//!   it, by the manual page of the verb. An argument that is a reference is such a structure, or a `MaybeUninit` for an output buffer.
//! - **V5, last**: the thread that destroys an object has no concurrent call that uses it, and uses it no more unless the call fails.
//!   Programs uphold it.
//! - **V6, one context**: the objects named in one call belong to one context, so all belong to this provider if one does. Programs uphold
//!   it, and libibverbs refuses most calls that violate it.
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
