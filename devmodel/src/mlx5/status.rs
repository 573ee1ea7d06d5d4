//! The codes in completions with an error (PRM: error completion; vendor errors as measured on ConnectX-5).

use crate::{
    state::Counters,
    transport::{Dropped, Event, Status},
};
use hwspec::{
    cqe::{CqeSyndrome, vendor_err},
    eqe::EventType,
    wire::NakCode,
};

/// Vendor error of a remote operational error.
const REMOTE_OPERATION: u8 = 0x89;
/// Vendor error of an invalid response.
const BAD_RESPONSE: u8 = 0x34;

/// The failure of a work request, as reported in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub syndrome: CqeSyndrome,
    pub vendor: u8,
}

impl Failure {
    pub(crate) const fn new(syndrome: CqeSyndrome, vendor: u8) -> Self {
        Self { syndrome, vendor }
    }

    /// The completion codes of a transport status.
    pub(crate) const fn of(status: Status) -> Self {
        use CqeSyndrome as Cqe;
        match status {
            Status::LocalLength => Self::new(Cqe::LocalLengthErr, vendor_err::SGE_LENGTH),
            Status::LocalProtection => Self::new(Cqe::LocalProtErr, vendor_err::LKEY),
            Status::Flushed => Self::new(Cqe::WrFlushErr, vendor_err::FLUSH),
            Status::BadResponse => Self::new(Cqe::BadRespErr, BAD_RESPONSE),
            Status::RemoteInvalidRequest => Self::new(Cqe::RemoteInvalReqErr, vendor_err::REMOTE_QP_ACCESS),
            Status::RemoteAccess => Self::new(Cqe::RemoteAccessErr, vendor_err::RKEY),
            Status::RemoteOperation => Self::new(Cqe::RemoteOpErr, REMOTE_OPERATION),
            Status::RetryExceeded => Self::new(Cqe::TransportRetryExcErr, vendor_err::RETRY),
            Status::RnrRetryExceeded => Self::new(Cqe::RnrRetryExcErr, vendor_err::RNR_RETRY),
            Status::RemoteAborted => Self::new(Cqe::RemoteAbortedErr, 0),
        }
    }
}

/// The counter of a status in addition to that of all error completions, if any.
pub(crate) fn counter_of(status: Status) -> Option<Counters> {
    match status {
        Status::RemoteInvalidRequest => Some(Counters::ReqRemoteInvalidRequest),
        Status::RemoteAccess => Some(Counters::ReqRemoteAccessErrors),
        Status::RetryExceeded => Some(Counters::ReqTransportRetriesExceeded),
        Status::RnrRetryExceeded => Some(Counters::ReqRnrRetriesExceeded),
        Status::LocalLength => Some(Counters::RespLocalLengthError),
        Status::LocalProtection
        | Status::Flushed
        | Status::BadResponse
        | Status::RemoteOperation
        | Status::RemoteAborted => None,
    }
}

/// The counter of a connection event.
#[inline(always)]
pub(crate) fn counter_of_event(event: Event) -> Counters {
    match event {
        Event::SequenceNak => Counters::PacketSeqErr,
        Event::ImpliedNak => Counters::ImpliedNakSeqErr,
        Event::RnrNak => Counters::RnrNakRetryErr,
        Event::AckTimeout => Counters::LocalAckTimeoutErr,
        Event::OutOfSequence => Counters::OutOfSequence,
        Event::Duplicate => Counters::DuplicateRequest,
        Event::NoReceive => Counters::OutOfBuffer,
        Event::AccessRefused => Counters::RespRemoteAccessErrors,
        Event::ReadRequest => Counters::RxReadRequests,
        Event::WriteRequest => Counters::RxWriteRequests,
        Event::AtomicRequest => Counters::RxAtomicRequests,
        Event::Notified => Counters::RpCnpHandled,
    }
}

/// The counter of a dropped datagram.
pub(crate) fn counter_of_dropped(dropped: Dropped) -> Counters {
    match dropped {
        Dropped::NotReady => Counters::RxDroppedQp,
        Dropped::Partition => Counters::RxDroppedPkey,
        Dropped::QKey => Counters::RxDroppedQkey,
        Dropped::Malformed => Counters::RxMalformed,
    }
}

/// The asynchronous event of a responder that ended its connection with a NAK (IBTA 11.6.3.2).
pub(crate) fn event_of(code: NakCode) -> EventType {
    match code {
        NakCode::InvalidRequest => EventType::WqInvalReqError,
        NakCode::RemoteAccess => EventType::WqAccessError,
        _ => EventType::WqCatasError,
    }
}
