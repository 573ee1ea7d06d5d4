//! The rdma-core provider: unmodified verbs programs reach the ironverbs devices through the stock libibverbs.
//!
//! One shared object serves the releases 36 to 65; what differs between them is found out at load time ([`abi`]).
//! Read in this order: `register` (loading), `device`, `context`, `table` (what is offered), then one file per object;
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
mod flow;
mod guard;
mod huge;
mod import;
mod mcast;
mod mlx5dv;
mod mr;
mod mw;
mod parent_domain;
mod pd;
mod pipe;
mod poll;
mod post;
mod qp;
mod qp_ex;
mod query;
mod rdma_cm;
mod register;
mod rights;
mod srq;
mod table;
mod wq;
mod xrc;
