//! The vfio-user protocol, version 0.1 (QEMU, docs/interop/vfio-user.rst): a PCI device in one process, used by
//! another.
//!
//! A message consists of a [`Header`] and a payload, sent over a stream socket that also carries file descriptors.
//! [`message`] has the payloads as plain data, [`version`] the negotiation at the start of a session, [`socket`] the
//! framing. A server reads requests from a [`Receiver`] and answers through a [`Sender`]; a client uses
//! [`Connection::call`].
//!
//! ```
//! use std::{os::unix::net::UnixStream, thread, time::Duration};
//! use ironverbs_vfio_user::{Command, Connection, DEVICE_FLAG_PCI, DeviceInfo, zerocopy::IntoBytes};
//!
//! let (client, server) = UnixStream::pair()?;
//! let device = thread::spawn(move || {
//!     let mut server = Connection::new(server)?;
//!     let request = server.receiver.receive(None)?.header;
//!     let info = DeviceInfo { argsz: 16, flags: DEVICE_FLAG_PCI, num_regions: 9, num_irqs: 5 };
//!     server.sender.reply(&request, &[info.as_bytes()], &[])
//! });
//! let request = DeviceInfo { argsz: 16, ..DeviceInfo::default() };
//! let (info, _): (DeviceInfo, _) =
//!     Connection::new(client)?.ask(Command::DEVICE_GET_INFO, &request, Duration::from_secs(5))?;
//! assert_eq!(info.num_regions, 9);
//! device.join().expect("the server")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All numbers are in host byte order, which both ends share. The other end is not trusted: sizes are checked before
//! any allocation, and a payload that is too short or an incomplete message is an error.
#![deny(unsafe_code)]

mod error;
mod header;
pub mod message;
pub mod socket;
pub mod sys;
pub mod version;

pub use error::{Error, Result};
pub use header::{Command, HEADER_SIZE, Header, Kind};
pub use message::*;
pub use socket::{Connection, Listener, Message, PATIENCE, Receiver, Reply, Sender};
pub use version::{Capabilities, Version};

/// Maximum bytes of data in a read or a write, announced as `max_data_xfer_size`.
pub const MAX_TRANSFER: usize = 64 << 10;
/// Maximum length of a message: the longest transfer with its headers.
pub const MAX_MESSAGE: usize = MAX_TRANSFER + 256;
/// Maximum number of descriptors in a message, announced as `max_msg_fds`. QEMU refuses a server that announces more.
pub const MAX_FDS: usize = 16;
/// Maximum number of DMA windows of a client, announced as `max_dma_maps`: the protocol's default.
pub const MAX_DMA_MAPS: usize = 65_535;
