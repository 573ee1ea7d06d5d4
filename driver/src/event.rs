//! Events that a function reports of its own accord.

/// An event of a QP or its receive queue (IBTA 11.6.3).
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

/// An event of a shared receive queue (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqEvent {
    /// Fewer receives are left than it was armed for.
    LimitReached,
    /// Catastrophic error: its entries cannot be read.
    Error,
}

/// An event of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// Link up.
    Active,
    /// Link down.
    Error,
    /// Its LID changed.
    LidChange,
    /// Its P_Keys changed.
    PkeyChange,
    /// Its GIDs changed.
    GidChange,
    /// The subnet manager asks its clients to register anew.
    ClientReregister,
    /// Something else of its attributes changed; the raw subtype.
    Other(u8),
}

/// An event of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device reported a fatal error, or the way to it is gone.
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
        /// The cookie that the CQ was created with.
        cookie: u64,
    },
    /// A CQ failed: overrun or no access to its memory.
    CqError {
        /// CQ number.
        cqn: u32,
        /// The cookie that the CQ was created with.
        cookie: u64,
    },
    /// A QP's affiliated event.
    Qp {
        /// QP number.
        qpn: u32,
        /// The cookie that the QP was created with.
        cookie: u64,
        /// The kind of event.
        kind: QpEvent,
    },
    /// A shared receive queue's event.
    Srq {
        /// SRQ number.
        srqn: u32,
        /// The cookie that the SRQ was created with.
        cookie: u64,
        /// The kind of event.
        kind: SrqEvent,
    },
    /// A work queue of [`Wq`](crate::Wq) failed, and could not say so in a completion.
    WqFatal {
        /// Its number.
        wqn: u32,
        /// The cookie that the work queue was created with.
        cookie: u64,
    },
    /// The port changed.
    Port {
        /// Port number, from 1.
        port: u8,
        /// The kind of event.
        kind: PortEvent,
    },
    /// The function itself.
    Device(DeviceEvent),
}
