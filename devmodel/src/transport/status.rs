//! The outcomes of a request, and the events that can be counted.

/// The reason why a work request or a receive fails (IBTA 10.10.3, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The message is longer than the receive.
    LocalLength = 1,
    /// The receive names memory that does not belong to its program.
    LocalProtection,
    /// The connection was in error before the request was processed.
    Flushed,
    /// A response does not match its request.
    BadResponse,
    /// The responder reported an invalid request.
    RemoteInvalidRequest,
    /// The responder's memory does not allow the request.
    RemoteAccess,
    /// The responder could not execute the request.
    RemoteOperation,
    /// The retries were exhausted without a response.
    RetryExceeded,
    /// The RNR retries were exhausted.
    RnrRetryExceeded,
    /// The requester aborted a message.
    RemoteAborted,
}

impl Status {
    /// The value that a responder keeps until its NAK is sent; 0 is none.
    pub(super) fn stored(status: Option<Self>) -> u8 {
        status.map_or(0, |status| status as u8)
    }

    /// The status of the receive in use, as kept by [`stored`](Self::stored).
    pub(super) fn of_receive(stored: u8) -> Option<Self> {
        [Self::LocalLength, Self::LocalProtection].into_iter().find(|status| *status as u8 == stored)
    }
}

/// The events of a connection that an adapter may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requester: a NAK reported a missing PSN.
    SequenceNak,
    /// Requester: a response skipped an unanswered READ or atomic.
    ImpliedNak,
    /// Requester: an RNR NAK arrived.
    RnrNak,
    /// Requester: no response in time.
    AckTimeout,
    /// Responder: a PSN after the expected one.
    OutOfSequence,
    /// Responder: a PSN before the expected one.
    Duplicate,
    /// Responder: a message without a receive for it.
    NoReceive,
    /// Responder: a request for memory that it may not access.
    AccessRefused,
    /// Responder: a READ request.
    ReadRequest,
    /// Responder: a WRITE request.
    WriteRequest,
    /// Responder: an atomic request.
    AtomicRequest,
    /// Requester: a congestion notification from the peer.
    Notified,
}
