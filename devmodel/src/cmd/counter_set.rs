//! Counter sets.

use super::{call::Call, refusal::Done};
use crate::state::{COUNTERS, CounterRow, Counters};
use hwspec::cmd::resource::*;

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryQCounterIn = call.input()?;
    let index = call.own::<CounterRow>(input.counter_set_id().into())?;
    let values = call.row::<CounterRow>(index)?.values;
    let count = |counter: Counters| values[counter as usize] as u32;
    let mut out = QueryQCounterOut::zeroed();
    out.set()
        .rx_write_requests(count(Counters::RxWriteRequests))
        .rx_read_requests(count(Counters::RxReadRequests))
        .rx_atomic_requests(count(Counters::RxAtomicRequests))
        .out_of_buffer(count(Counters::OutOfBuffer))
        .out_of_sequence(count(Counters::OutOfSequence))
        .duplicate_request(count(Counters::DuplicateRequest))
        .rnr_nak_retry_err(count(Counters::RnrNakRetryErr))
        .packet_seq_err(count(Counters::PacketSeqErr))
        .implied_nak_seq_err(count(Counters::ImpliedNakSeqErr))
        .local_ack_timeout_err(count(Counters::LocalAckTimeoutErr))
        .resp_local_length_error(count(Counters::RespLocalLengthError))
        .resp_cqe_error(count(Counters::RespCqeError))
        .req_cqe_error(count(Counters::ReqCqeError))
        .req_remote_invalid_request(count(Counters::ReqRemoteInvalidRequest))
        .req_remote_access_errors(count(Counters::ReqRemoteAccessErrors))
        .resp_remote_access_errors(count(Counters::RespRemoteAccessErrors))
        .req_rnr_retries_exceeded(count(Counters::ReqRnrRetriesExceeded))
        .req_transport_retries_exceeded(count(Counters::ReqTransportRetriesExceeded))
        .resp_cqe_flush_error(count(Counters::RespCqeFlushError))
        .req_cqe_flush_error(count(Counters::ReqCqeFlushError));
    if input.clear() {
        call.row_mut::<CounterRow>(index)?.values = [0; COUNTERS];
    }
    call.answer(&out)
}
