//! Protection domains, UARs, domains and user contexts.
use super::{CmdIn, CmdOut};

commands! {
    0x800 AllocPd in CmdIn out AllocPdOut: 0x10 { 0x008 [23: 0] pd: u32 }
    0x801 DeallocPd in DeallocPdIn: 0x10, uid { 0x008 [23: 0] pd: u32 } out CmdOut
    0x802 AllocUar in CmdIn out AllocUarOut: 0x10 { 0x008 [23: 0] uar: u32 }
    0x803 DeallocUar in DeallocUarIn: 0x10, uid { 0x008 [23: 0] uar: u32 } out CmdOut

    0x816 AllocTransportDomain
        in CmdIn
        out AllocTransportDomainOut: 0x10 { 0x008 [23: 0] transport_domain: u32 }

    0x817 DeallocTransportDomain
        in DeallocTransportDomainIn: 0x10, uid { 0x008 [23: 0] transport_domain: u32 }
        out CmdOut

    0x80e AllocXrcd in CmdIn out AllocXrcdOut: 0x10 { 0x008 [23: 0] xrcd: u32 }
    0x80f DeallocXrcd in DeallocXrcdIn: 0x10, uid { 0x008 [23: 0] xrcd: u32 } out CmdOut
    0x771 AllocQCounter in CmdIn out AllocQCounterOut: 0x10 { 0x008 [ 7: 0] counter_set_id: u8 }

    0x773 QueryQCounter
        in QueryQCounterIn: 0x20, uid {
            0x018 [31:31] clear: bool,
            0x01c [ 7: 0] counter_set_id: u8,
        }
        out QueryQCounterOut: 0x100 {
            0x010 [31: 0] rx_write_requests: u32,
            0x018 [31: 0] rx_read_requests: u32,
            0x020 [31: 0] rx_atomic_requests: u32,
            0x028 [31: 0] rx_dct_connect: u32,
            0x030 [31: 0] out_of_buffer: u32,
            0x038 [31: 0] out_of_sequence: u32,
            0x040 [31: 0] duplicate_request: u32,
            0x048 [31: 0] rnr_nak_retry_err: u32,
            0x050 [31: 0] packet_seq_err: u32,
            0x058 [31: 0] implied_nak_seq_err: u32,
            0x060 [31: 0] local_ack_timeout_err: u32,
            0x070 [31: 0] req_rnr_retries_exceeded: u32,
            0x078 [31: 0] resp_local_length_error: u32,
            0x07c [31: 0] req_local_length_error: u32,
            0x080 [31: 0] resp_local_qp_error: u32,
            0x084 [31: 0] local_operation_error: u32,
            0x088 [31: 0] resp_local_protection: u32,
            0x08c [31: 0] req_local_protection: u32,
            0x090 [31: 0] resp_cqe_error: u32,
            0x094 [31: 0] req_cqe_error: u32,
            0x098 [31: 0] req_mw_binding: u32,
            0x09c [31: 0] req_bad_response: u32,
            0x0a0 [31: 0] req_remote_invalid_request: u32,
            0x0a4 [31: 0] resp_remote_invalid_request: u32,
            0x0a8 [31: 0] req_remote_access_errors: u32,
            0x0ac [31: 0] resp_remote_access_errors: u32,
            0x0b0 [31: 0] req_remote_operation_errors: u32,
            0x0b4 [31: 0] req_transport_retries_exceeded: u32,
            0x0b8 [31: 0] cq_overflow: u32,
            0x0bc [31: 0] resp_cqe_flush_error: u32,
            0x0c0 [31: 0] req_cqe_flush_error: u32,
            0x0c8 [31: 0] roce_adp_retrans: u32,
            0x0cc [31: 0] roce_adp_retrans_to: u32,
            0x0d0 [31: 0] roce_slow_restart: u32,
            0x0d4 [31: 0] roce_slow_restart_cnps: u32,
            0x0d8 [31: 0] roce_slow_restart_trans: u32,
        }

    0x772 DeallocQCounter in DeallocQCounterIn: 0x10, uid { 0x008 [ 7: 0] counter_set_id: u8 } out CmdOut
}
