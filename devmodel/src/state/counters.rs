//! The counters of a port.

/// Number of per-function counters.
pub const COUNTERS: usize = 64;

/// The counters of the port. Names follow the Linux `hw_counters` directory of a RoCE device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Counters {
    TxPackets,
    TxBytes,
    RxPackets,
    RxBytes,
    RxIcrcErrors,
    /// Unknown QPN, wrong transport, QP not in RTR or RTS, TVer not 0.
    RxDroppedQp,
    RxDroppedPkey,
    RxDroppedQkey,
    /// Malformed before the transport headers could be parsed.
    RxMalformed,
    /// No room in the receive ring.
    RxRingFull,
    OutOfSequence,
    DuplicateRequest,
    ImpliedNakSeqErr,
    PacketSeqErr,
    RnrNakRetryErr,
    LocalAckTimeoutErr,
    OutOfBuffer,
    RespLocalLengthError,
    RespCqeError,
    ReqCqeError,
    ReqRemoteInvalidRequest,
    ReqRemoteAccessErrors,
    RespRemoteAccessErrors,
    RxReadRequests,
    RxWriteRequests,
    RxAtomicRequests,
    NpCnpSent,
    RpCnpHandled,
    BadDoorbells,
    CommandsDone,
    RespCqeFlushError,
    ReqCqeFlushError,
    /// Ethernet frames other than RDMA: sent and received, by destination.
    EthTxUnicastPackets,
    EthTxUnicastBytes,
    EthTxMulticastPackets,
    EthTxMulticastBytes,
    EthTxBroadcastPackets,
    EthTxBroadcastBytes,
    EthRxUnicastPackets,
    EthRxUnicastBytes,
    EthRxMulticastPackets,
    EthRxMulticastBytes,
    EthRxBroadcastPackets,
    EthRxBroadcastBytes,
    /// Ethernet frames that no flow table entry directs to a queue.
    EthRxUnmatched,
    /// Ethernet frames longer than the MTU.
    EthRxTooLong,
    /// Ethernet frames dropped for want of a receive WQE, or because the queue was not ready.
    EthRxDiscards,
    /// InfiniBand multicast packets and bytes, which the counters of all packets count as well.
    IbTxMulticastPackets,
    IbTxMulticastBytes,
    IbRxMulticastPackets,
    IbRxMulticastBytes,
    /// RNR NAKs beyond `rnr_retry`.
    ReqRnrRetriesExceeded,
    /// Timeouts and sequence NAKs beyond `retry_count`.
    ReqTransportRetriesExceeded,
    /// Packets received on connections with a congestion mark.
    NpEcnMarkedRocePackets,
    /// Congestion notifications that their queue pair ignores.
    RpCnpIgnored,
}
