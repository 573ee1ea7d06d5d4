//! Protection, transport and XRC domains, UAR pages, counter sets.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::state::{COUNTERS, CounterRow, Counters, PdRow, TdRow, UarRow, XrcdRow};
use hwspec::{cmd::resource::*, pcie::FIRST_UAR};

pub(super) fn alloc_pd(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<PdRow>(0)?;
    call.answer(&AllocPdOut::with(|s| s.pd(call.func.number::<PdRow>(index))))
}

pub(super) fn dealloc_pd(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocPdIn = call.input()?;
    call.release::<PdRow>(input.pd(), Syndrome::NoSuchPd)?;
    call.done()
}

/// The number is that of the page in BAR0, so the first ones are not allocated.
pub(super) fn alloc_uar(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<UarRow>(FIRST_UAR)?;
    call.answer(&AllocUarOut::with(|s| s.uar(index)))
}

pub(super) fn dealloc_uar(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocUarIn = call.input()?;
    call.release::<UarRow>(input.uar(), Syndrome::NoSuchUar)?;
    call.done()
}

pub(super) fn alloc_td(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<TdRow>(0)?;
    let out = AllocTransportDomainOut::with(|s| s.transport_domain(call.func.number::<TdRow>(index)));
    call.answer(&out)
}

pub(super) fn dealloc_td(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocTransportDomainIn = call.input()?;
    call.release::<TdRow>(input.transport_domain(), Syndrome::NoSuchTd)?;
    call.done()
}

pub(super) fn alloc_xrcd(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<XrcdRow>(0)?;
    call.answer(&AllocXrcdOut::with(|s| s.xrcd(call.func.number::<XrcdRow>(index))))
}

pub(super) fn dealloc_xrcd(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocXrcdIn = call.input()?;
    call.release::<XrcdRow>(input.xrcd(), Syndrome::NoSuchXrcd)?;
    call.done()
}

pub(super) fn alloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    // Set 0 is the default of QPs.
    let index = call.alloc::<CounterRow>(1)?;
    call.answer(&AllocQCounterOut::with(|s| s.counter_set_id(index as u8)))
}

pub(super) fn dealloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocQCounterIn = call.input()?;
    call.release::<CounterRow>(input.counter_set_id().into(), Syndrome::NoSuchCounter)?;
    call.done()
}

pub(super) fn query_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryQCounterIn = call.input()?;
    let index = call.own::<CounterRow>(input.counter_set_id().into(), Syndrome::NoSuchCounter)?;
    let Some(row) = call.func.row::<CounterRow>(index) else { return Syndrome::NoSuchCounter.refuse() };
    let values = row.values;
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
        if let Some(row) = call.func.row_mut::<CounterRow>(index) {
            row.values = [0; COUNTERS];
        }
    }
    call.answer(&out)
}
