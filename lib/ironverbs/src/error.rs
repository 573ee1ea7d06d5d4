//! The errors of this crate: one kind for each reason, each displayed in one line.

use crate::verbs::{self, WcStatus};
use std::net::SocketAddr;

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason of a failed operation.
///
/// A completion with an error moves a connected queue pair to its error state: later requests end with [`Error::Closed`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device was unplugged, or the program behind it has ended.
    #[error("the device is gone")]
    DeviceGone,
    /// The peer does not acknowledge packets any more: its program, its queue pair or the way to it is gone.
    #[error("the peer is gone: it acknowledges nothing")]
    PeerGone,
    /// The peer posted no receive for the message in time.
    #[error("the peer has no receive for the message")]
    NotReady,
    /// The queue pair is not connected, or was closed before the request was carried out: by this side, by the peer, or by an earlier error.
    #[error("the queue pair is not connected")]
    Closed,
    /// The peer's key does not permit the access: wrong key, out of bounds, or a missing right.
    #[error("the peer's memory does not permit this access")]
    RemoteAccess,
    /// The peer cannot carry out the request: the message is longer than its receive buffer, or the operation is not supported.
    #[error("the peer refused the request: the message does not fit, or it lacks the operation")]
    RemoteRequest,
    /// The peer failed to carry out the request.
    #[error("the peer failed to carry out the request")]
    RemoteOperation,
    /// A message arrived that is longer than the buffer posted for it.
    #[error("a message is longer than the buffer it was to go to")]
    BufferTooShort,
    /// The buffer's memory cannot be used on this queue pair, as that of another device.
    #[error("the buffer does not belong to the device of this queue pair")]
    LocalAccess,
    /// A memory window could not be bound, or a request of another kind failed in the device.
    #[error("the device refused the request: {0:?}")]
    Request(WcStatus),
    /// Bytes do not fit.
    #[error("{len} bytes do not fit into {room}")]
    TooLong {
        /// Number of bytes.
        len: usize,
        /// The room for them.
        room: usize,
    },
    /// All buffers of the pool are in use; [`Pool::acquire`](crate::Pool::acquire) waits for one.
    #[error("all buffers of the pool are in use")]
    PoolEmpty,
    /// The text does not name a device.
    #[error("not a device: {0}")]
    NotADevice(String),
    /// The device could not be opened.
    #[error("the device cannot be opened: {0}")]
    Open(#[from] node::PlaceError),
    /// The device refused a command, such as the creation of an object that it has no room for.
    #[error(transparent)]
    Device(verbs::Error),
    /// No open device has this address or a way to it.
    #[error("there is no way to {0}")]
    Unreachable(SocketAddr),
    /// Nobody answers at the address.
    #[error("nobody answers at {0}")]
    NoAnswer(SocketAddr),
    /// The peer has no listener at the port.
    #[error("nobody listens at {0}")]
    NoListener(SocketAddr),
    /// Another listener has the port.
    #[error("{0} is in use by another listener")]
    AddressInUse(SocketAddr),
    /// The peer rejected the connection.
    #[error("the peer rejected the connection")]
    Rejected {
        /// The peer's private data.
        data: Vec<u8>,
    },
    /// The other side violated the protocol of connections, or has lost its state.
    #[error("the connection failed: {0}")]
    Protocol(String),
    /// The plan of faults is invalid.
    #[error("not a plan of faults: {0}")]
    Plan(String),
    /// The operating system refused a descriptor or a thread.
    #[error("{0}: {1}")]
    System(&'static str, std::io::Error),
}

impl From<verbs::Error> for Error {
    fn from(error: verbs::Error) -> Self {
        match error {
            verbs::Error::Gone => Self::DeviceGone,
            error => Self::Device(error),
        }
    }
}

impl Error {
    /// The error of a completion; `None` for success.
    pub(crate) fn of(status: WcStatus) -> Option<Self> {
        Some(match status {
            WcStatus::Success => return None,
            WcStatus::RetryExcErr | WcStatus::RemAbortErr => Self::PeerGone,
            WcStatus::RnrRetryExcErr => Self::NotReady,
            WcStatus::WrFlushErr => Self::Closed,
            WcStatus::RemAccessErr => Self::RemoteAccess,
            WcStatus::RemInvReqErr => Self::RemoteRequest,
            WcStatus::RemOpErr => Self::RemoteOperation,
            WcStatus::LocLenErr => Self::BufferTooShort,
            WcStatus::LocProtErr | WcStatus::LocAccessErr => Self::LocalAccess,
            other => Self::Request(other),
        })
    }
}
