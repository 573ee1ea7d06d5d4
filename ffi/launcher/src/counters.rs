//! Port counters, with the names and units of the Linux kernel, for sysfs and netlink.

use devmodel::state::{
    COUNTERS,
    Counters::{self, *},
};

/// A counter: its name, and the function that computes it from the port's counts.
pub type Named = (&'static str, fn(&[u64; COUNTERS]) -> u64);

fn none(_: &[u64; COUNTERS]) -> u64 {
    0
}

fn sum(values: &[u64; COUNTERS], of: &[Counters]) -> u64 {
    of.iter().fold(0, |sum, c| sum.saturating_add(values[*c as usize]))
}

fn less(values: &[u64; COUNTERS], all: Counters, some: Counters) -> u64 {
    values[all as usize].saturating_sub(values[some as usize])
}

/// Directory `counters`: performance management (IBTA 16.1.4). Data is counted in units of four bytes, and on Ethernet only RDMA packets
/// count, as with the mlx5 driver.
pub const PORT: &[Named] = &[
    ("VL15_dropped", none),
    ("excessive_buffer_overrun_errors", none),
    ("link_downed", none),
    ("link_error_recovery", none),
    ("local_link_integrity_errors", none),
    ("multicast_rcv_packets", |c| sum(c, &[IbRxMulticastPackets])),
    ("multicast_xmit_packets", |c| sum(c, &[IbTxMulticastPackets])),
    ("port_rcv_constraint_errors", none),
    ("port_rcv_data", |c| sum(c, &[RxBytes]) / 4),
    ("port_rcv_errors", |c| sum(c, &[RxIcrcErrors, RxMalformed])),
    ("port_rcv_packets", |c| sum(c, &[RxPackets])),
    ("port_rcv_remote_physical_errors", none),
    ("port_rcv_switch_relay_errors", none),
    ("port_xmit_constraint_errors", none),
    ("port_xmit_data", |c| sum(c, &[TxBytes]) / 4),
    ("port_xmit_discards", none),
    ("port_xmit_packets", |c| sum(c, &[TxPackets])),
    ("port_xmit_wait", none),
    ("symbol_error", none),
    ("unicast_rcv_packets", |c| less(c, RxPackets, IbRxMulticastPackets)),
    ("unicast_xmit_packets", |c| less(c, TxPackets, IbTxMulticastPackets)),
];

/// Directory `hw_counters` and a link's statistics, in the order of the mlx5 driver.
pub const HARDWARE: &[Named] = &[
    ("rx_write_requests", |c| sum(c, &[RxWriteRequests])),
    ("rx_read_requests", |c| sum(c, &[RxReadRequests])),
    ("rx_atomic_requests", |c| sum(c, &[RxAtomicRequests])),
    ("out_of_buffer", |c| sum(c, &[OutOfBuffer])),
    ("out_of_sequence", |c| sum(c, &[OutOfSequence])),
    ("duplicate_request", |c| sum(c, &[DuplicateRequest])),
    ("rnr_nak_retry_err", |c| sum(c, &[RnrNakRetryErr])),
    ("packet_seq_err", |c| sum(c, &[PacketSeqErr])),
    ("implied_nak_seq_err", |c| sum(c, &[ImpliedNakSeqErr])),
    ("local_ack_timeout_err", |c| sum(c, &[LocalAckTimeoutErr])),
    ("resp_local_length_error", |c| sum(c, &[RespLocalLengthError])),
    ("resp_cqe_error", |c| sum(c, &[RespCqeError])),
    ("req_cqe_error", |c| sum(c, &[ReqCqeError])),
    ("req_remote_invalid_request", |c| sum(c, &[ReqRemoteInvalidRequest])),
    ("req_remote_access_errors", |c| sum(c, &[ReqRemoteAccessErrors])),
    ("resp_remote_access_errors", |c| sum(c, &[RespRemoteAccessErrors])),
    ("resp_cqe_flush_error", |c| sum(c, &[RespCqeFlushError])),
    ("req_cqe_flush_error", |c| sum(c, &[ReqCqeFlushError])),
    ("rp_cnp_handled", |c| sum(c, &[RpCnpHandled])),
    ("rp_cnp_ignored", |c| sum(c, &[RpCnpIgnored])),
    ("np_ecn_marked_roce_packets", |c| sum(c, &[NpEcnMarkedRocePackets])),
    ("np_cnp_sent", |c| sum(c, &[NpCnpSent])),
    ("rx_icrc_encapsulated", |c| sum(c, &[RxIcrcErrors])),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_counted_in_words_and_packets_are_not() {
        let mut values = [0; COUNTERS];
        values[TxBytes as usize] = 4096 + 60;
        values[TxPackets as usize] = 3;
        values[IbTxMulticastPackets as usize] = 1;
        let of = |name: &str| PORT.iter().find(|(n, _)| *n == name).unwrap().1(&values);
        assert_eq!((of("port_xmit_data"), of("port_xmit_packets")), (1039, 3));
        assert_eq!((of("unicast_xmit_packets"), of("multicast_xmit_packets")), (2, 1));
    }

    #[test]
    fn no_two_counters_have_one_name() {
        let names: std::collections::BTreeSet<_> = PORT.iter().chain(HARDWARE).map(|(n, _)| n).collect();
        assert_eq!(names.len(), PORT.len() + HARDWARE.len());
    }
}
