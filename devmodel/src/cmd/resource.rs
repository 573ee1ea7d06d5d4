//! Protection, transport and XRC domains, UAR pages, counter sets.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    region::Func,
    state::{CounterRow, Counters, PdRow, TdRow, UarRow, XrcdRow},
};
use hwspec::{cmd::resource::*, pcie::FIRST_UAR};

pub(super) fn alloc_pd(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<PdRow>(0)?;
    let mut out = AllocPdOut::zeroed();
    out.set().pd(call.func.number::<PdRow>(index));
    call.answer(&out)
}

pub(super) fn dealloc_pd(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocPdIn = call.input()?;
    call.release::<PdRow>(input.pd(), Syndrome::NoSuchPd)?;
    call.done()
}

/// The number is the page's in BAR0, so the first ones are not given out.
pub(super) fn alloc_uar(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<UarRow>(FIRST_UAR)?;
    let mut out = AllocUarOut::zeroed();
    out.set().uar(index);
    call.answer(&out)
}

pub(super) fn dealloc_uar(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocUarIn = call.input()?;
    call.release::<UarRow>(input.uar(), Syndrome::NoSuchUar)?;
    call.done()
}

pub(super) fn alloc_td(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<TdRow>(0)?;
    let mut out = AllocTransportDomainOut::zeroed();
    out.set().transport_domain(call.func.number::<TdRow>(index));
    call.answer(&out)
}

pub(super) fn dealloc_td(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocTransportDomainIn = call.input()?;
    call.release::<TdRow>(input.transport_domain(), Syndrome::NoSuchTd)?;
    call.done()
}

pub(super) fn alloc_xrcd(call: &mut Call<'_, '_, '_>) -> Done {
    let index = call.alloc::<XrcdRow>(0)?;
    let mut out = AllocXrcdOut::zeroed();
    out.set().xrcd(call.func.number::<XrcdRow>(index));
    call.answer(&out)
}

pub(super) fn dealloc_xrcd(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocXrcdIn = call.input()?;
    call.release::<XrcdRow>(input.xrcd(), Syndrome::NoSuchXrcd)?;
    call.done()
}

/// What a counter set counts: the function's counters, from where they stood when the set was allocated or cleared.
const COUNTED: [Counters; 15] = [
    Counters::RxWriteRequests,
    Counters::RxReadRequests,
    Counters::RxAtomicRequests,
    Counters::OutOfBuffer,
    Counters::OutOfSequence,
    Counters::DuplicateRequest,
    Counters::RnrNakRetryErr,
    Counters::PacketSeqErr,
    Counters::ImpliedNakSeqErr,
    Counters::LocalAckTimeoutErr,
    Counters::RespLocalLengthError,
    Counters::RespCqeError,
    Counters::ReqCqeError,
    Counters::ReqRemoteInvalidRequest,
    Counters::ReqRemoteAccessErrors,
];

fn counted(func: &Func<'_>) -> [u64; 16] {
    let mut now = [0; 16];
    for (value, counter) in now.iter_mut().zip(COUNTED) {
        *value = func.function().counters[counter as usize];
    }
    now
}

pub(super) fn alloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let values = counted(call.func);
    // Set 0 is what QPs name that chose none.
    let index = call.alloc::<CounterRow>(1)?;
    if let Some(row) = call.func.row_mut::<CounterRow>(index) {
        row.values = values;
    }
    let mut out = AllocQCounterOut::zeroed();
    out.set().counter_set_id(index as u8);
    call.answer(&out)
}

pub(super) fn dealloc_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocQCounterIn = call.input()?;
    call.release::<CounterRow>(input.counter_set_id().into(), Syndrome::NoSuchCounter)?;
    call.done()
}

pub(super) fn query_counter(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryQCounterIn = call.input()?;
    let now = counted(call.func);
    let index = call.own::<CounterRow>(input.counter_set_id().into(), Syndrome::NoSuchCounter)?;
    let Some(row) = call.func.row::<CounterRow>(index) else { return Syndrome::NoSuchCounter.refuse() };
    let then = row.values;
    let count = |i: usize| now[i].wrapping_sub(then[i]) as u32;
    let mut out = QueryQCounterOut::zeroed();
    out.set()
        .rx_write_requests(count(0))
        .rx_read_requests(count(1))
        .rx_atomic_requests(count(2))
        .out_of_buffer(count(3))
        .out_of_sequence(count(4))
        .duplicate_request(count(5))
        .rnr_nak_retry_err(count(6))
        .packet_seq_err(count(7))
        .implied_nak_seq_err(count(8))
        .local_ack_timeout_err(count(9))
        .resp_local_length_error(count(10))
        .resp_cqe_error(count(11))
        .req_cqe_error(count(12))
        .req_remote_invalid_request(count(13))
        .req_remote_access_errors(count(14));
    if input.clear() {
        if let Some(row) = call.func.row_mut::<CounterRow>(index) {
            row.values = now;
        }
    }
    call.answer(&out)
}
