//! The outcomes of a request, and the events to count.

/// Why a work request fails, or a receive (IBTA 10.10.3, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// A message longer than the receive.
    LocalLength = 1,
    /// A receive names memory that is not its program's.
    LocalProtection,
    /// The connection was in error before the request had its turn.
    Flushed,
    /// An answer that does not fit its request.
    BadResponse,
    /// The responder says that the request is invalid.
    RemoteInvalidRequest,
    /// The responder's memory does not allow the request.
    RemoteAccess,
    /// The responder could not carry out the request.
    RemoteOperation,
    /// No answer, however often it was asked.
    RetryExceeded,
    /// The responder was not ready, however often it was asked.
    RnrRetryExceeded,
    /// The requester broke off a message.
    RemoteAborted,
}

impl Status {
    /// The value that a responder keeps until its NAK is sent: 0 is none.
    pub(super) fn stored(status: Option<Self>) -> u8 {
        status.map_or(0, |status| status as u8)
    }

    /// The status that [`stored`](Self::stored) kept, which is about the receive in use.
    pub(super) fn of_receive(stored: u8) -> Option<Self> {
        [Self::LocalLength, Self::LocalProtection].into_iter().find(|status| *status as u8 == stored)
    }
}

/// The events on a connection that an adapter may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requester: a NAK said that a PSN is missing.
    SequenceNak,
    /// Requester: an answer went past a READ or atomic that is not answered.
    ImpliedNak,
    /// Requester: a NAK said that the receiver is not ready.
    RnrNak,
    /// Requester: no answer in time.
    AckTimeout,
    /// Responder: a PSN ahead of the one expected.
    OutOfSequence,
    /// Responder: a PSN behind the one expected.
    Duplicate,
    /// Responder: a message and no receive for it.
    NoReceive,
    /// Responder: a request for memory that it may not have.
    AccessRefused,
    /// Responder: a READ request.
    ReadRequest,
    /// Responder: a WRITE request.
    WriteRequest,
    /// Responder: an atomic request.
    AtomicRequest,
    /// Requester: the peer notified of congestion.
    Notified,
}
