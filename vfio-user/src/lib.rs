//! The vfio-user protocol, version 0.1 (QEMU, docs/interop/vfio-user.rst): a PCI device in one process, used by another.
//!
//! Messages are a [`Header`] and a payload, over a stream socket that also carries file descriptors. [`message`] has the
//! payloads as plain data, [`version`] the negotiation that opens a session, [`socket`] the framing. A server reads
//! requests from a [`Receiver`] and answers through a [`Sender`]; a client uses [`Connection::call`].
//!
//! All numbers are in the byte order of the host, which both ends share. Nothing here trusts the other end: sizes are
//! bounded before anything is kept, a payload too short is an error, and so is a message that does not come to its end.
#![deny(unsafe_code)]

mod error;
mod header;
pub mod message;
pub mod socket;
mod sys;
pub mod version;

pub use error::{Error, Result};
pub use header::{Command, HEADER_SIZE, Header, Kind};
pub use message::*;
pub use socket::{Connection, Listener, Message, PATIENCE, Receiver, Reply, Sender};
pub use version::{Capabilities, Version};

/// Bytes of data of a read or a write that we take at most, announced as `max_data_xfer_size`.
pub const MAX_TRANSFER: usize = 64 << 10;
/// Bytes of a message that we take at most: the longest transfer with all that stands before it.
pub const MAX_MESSAGE: usize = MAX_TRANSFER + 256;
/// Descriptors in a message that we take at most, announced as `max_msg_fds`; QEMU refuses a server that announces more.
pub const MAX_FDS: usize = 16;
/// DMA windows a client may have at a time, announced as `max_dma_maps`: the protocol's default.
pub const MAX_DMA_MAPS: usize = 65_535;
