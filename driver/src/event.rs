//! Events that a function reports.

/// An event of a QP or its receive queue (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// Communication established: a packet arrived while in RTR.
    CommEstablished,
    /// The send queue has drained (SQD).
    SqDrained,
    /// The last receive work request of a QP on an SRQ is complete.
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
    /// Fewer receives are left than the armed limit.
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
    /// The subnet manager asks its clients to reregister.
    ClientReregister,
    /// Another change of its attributes, with the raw subtype.
    Other(u8),
}

/// An event of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device reported a fatal error, or the connection to it is gone.
    Fatal,
    /// An event unknown to this driver: type and subtype.
    Other(u8, u8),
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A CQ that was armed has a completion.
    Cq {
        /// CQ number.
        cqn: u32,
        /// The cookie given at creation of the CQ.
        cookie: u64,
    },
    /// A CQ failed: overrun or no access to its memory.
    CqError {
        /// CQ number.
        cqn: u32,
        /// The cookie given at creation of the CQ.
        cookie: u64,
    },
    /// An affiliated event of a QP.
    Qp {
        /// QP number.
        qpn: u32,
        /// The cookie given at creation of the QP.
        cookie: u64,
        /// The kind of event.
        kind: QpEvent,
    },
    /// An event of a shared receive queue.
    Srq {
        /// SRQ number.
        srqn: u32,
        /// The cookie given at creation of the SRQ.
        cookie: u64,
        /// The kind of event.
        kind: SrqEvent,
    },
    /// A work queue ([`Wq`](crate::Wq)) failed, and could not report that in a completion.
    WqFatal {
        /// Its number.
        wqn: u32,
        /// The cookie given at creation of the work queue.
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
