//! A function as a device that another process uses: over vfio-user, where QEMU plugs it into its guest, or over vhost-user,
//! where user-mode Linux has it on its PCI bus.
//!
//! A [`Plug`] is one function on one socket. Its thread takes one client after the other and does what the client asks
//! ([`session`], [`vhost`]) through a [`Function`]: the way to the adapter, which may lie in a node's shared memory or be our own
//! ([`Standalone`]). A [`Guest`] holds what the client gave: its memory, by bus address, and the eventfds of its interrupts. The
//! adapter's host looks a served function's addresses up there, and only there.
//!
//! The client is not trusted, nor is the guest behind it: whatever they send ends in an error reply, an error status of
//! the device, or the end of their own session.

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
