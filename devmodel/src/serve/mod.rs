//! Serves a function as a device to another process: over vfio-user, by which QEMU passes it to its guest, or over vhost-user,
//! by which user-mode Linux has it on its PCI bus.
//!
//! A [`Plug`] is one function on one socket. Its thread serves one client after another: it handles the client's requests
//! ([`session`], [`vhost`]) through a [`Function`], the path to the adapter, which may be in a node's shared memory or private
//! ([`Standalone`]). A [`Guest`] holds the resources of the client: its memory, by bus address, and the eventfds of its
//! interrupts. The adapter's host resolves a served function's addresses only there.
//!
//! Neither the client nor the guest behind it is trusted: any input ends in an error reply, an error status of the device, or
//! the end of the client's own session.

mod access;
mod function;
mod irqs;
mod memory;
mod misbehave;
mod plug;
mod ram;
pub mod session;
mod standalone;
pub mod vhost;

pub use function::{Function, Guest};
pub use irqs::Irqs;
pub use memory::{GuestMemory, Reader, store, transfer};
pub use misbehave::{Misbehaving, Misbehaviour, When};
pub use plug::Plug;
pub use standalone::Standalone;
