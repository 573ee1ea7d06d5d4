//! Driver of a ConnectX-class function: bring-up, command queue, events, and safe Rust verbs.
//!
//! A function is reached through [`transport::Transport`]; everything above it is the same for a real card and a
//! simulated one. Here `device` is a function of a node (`ironverbs-node`). Every program creates these objects:
//!
//! ```
//! use ironverbs_driver::{AccessFlags, Cq, Mr, Pd, Qp, QpInit, QpState, Service, dma::DmaMem, transport::Scope};
//! use std::sync::Arc;
//! # use node::{Node, NodeOptions, open_device_of};
//! # let dir = std::path::PathBuf::from(format!("/dev/shm/ironverbs-driver-doc-{}", std::process::id()));
//! # let node = Node::open_or_create(&dir, &NodeOptions { vfs: Some(1), ..NodeOptions::default() })?;
//! # std::fs::remove_dir_all(&dir)?;
//! let device = open_device_of(&node, 1)?;
//! let pd = Pd::alloc(&device)?;
//! let cq = Cq::create(&device, 16, 0)?;
//! let memory = Arc::new(DmaMem::alloc(device.transport(), 4096, Scope::Opener)?);
//! let mr = Mr::over(&pd, &memory, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
//! let init = QpInit { max_send_wr: 8, max_send_sge: 1, ..QpInit::new(Service::Rc, &cq, &cq) };
//! let qp = Qp::create(&pd, &init)?;
//! assert_eq!(qp.query()?.qp_state, QpState::Reset);
//! assert_ne!(mr.rkey(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/` continues from here: connected queue pairs (`ends`), SEND and receive (`pingpong`), RDMA WRITE
//! (`write`), and completions and asynchronous events that wake a sleeping program (`events`).
//!
//! Reading order: `bringup` (the order of the interface), `cmd`, `verbs`, then the two hot modules `post` and `poll`.

mod abandoned;
mod async_queue;
mod blueflame;
mod bringup;
mod cmd;
mod common;
mod completions;
mod config;
pub mod dma;
mod eq;
pub mod error;
mod event;
mod events;
mod function;
pub mod harness;
pub mod health;
mod inline;
mod options;
mod pages;
pub mod pci;
mod placeholders;
mod poll;
mod port;
mod post;
mod ready;
mod records;
mod registry;
mod resolve;
mod shared_area;
mod shared_receive;
pub mod sriov;
mod teardown;
#[cfg(test)]
mod tests;
pub mod transport;
mod umr;
mod vectors;
pub mod verbs;
mod vport;

pub use bringup::{Step, Watch};
pub use completions::CompletionEvents;
pub use error::{Error, PostError};
pub use event::{DeviceEvent, Event, PortEvent, QpEvent, SrqEvent};
pub use events::Events;
pub use health::{Health, HealthWatch};
pub use resolve::{OwnAddress, Resolve};
pub use shared_area::FileId;
pub use verbs::*;
