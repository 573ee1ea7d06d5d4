//! Send queues without a queue pair.

use super::{
    bind::{Bound, cast},
    call::Call,
    memory::{self, Given},
    refusal::{Done, Syndrome},
};
use crate::state::{CqRow, PdRow, SqRow, TisRow, UarRow};
use hwspec::{
    cmd::{rq_sq::*, uctx::RAW_TX},
    context::{rq_sq::*, wq::*},
    layout::{Layout, load, store},
    wqe::WQE_BB,
};

/// log2 of the maximum number of basic blocks of a send queue, and of WQEs of a receive queue.
pub(super) const LOG_MAX_SIZE: u8 = 15;
/// Bits of the state in the first dword of both kinds of contexts.
const STATE: (usize, usize) = (23, 20);

/// True if the transition between the two states is legal (PRM: RQ and SQ states).
pub(super) fn may_go(from: u8, to: u8) -> bool {
    from == to && to != RESET || matches!((from, to), (RESET, READY) | (_, RESET) | (_, ERROR))
}

/// Checks the ring and the state of a new send or receive queue; `plain` tells if it needs nothing that this device lacks.
pub(super) fn check(wq: &WorkQueue, state: u8, plain: bool) -> Done {
    Syndrome::Signature.unless(!wq.wq_signature())?;
    Syndrome::QueueFlags.unless(plain)?;
    Syndrome::RqType.unless(wq.wq_type() == CYCLIC)?;
    Syndrome::QueueState.unless(state == RESET)?;
    Syndrome::QueueSize.unless(wq.log_wq_sz() <= LOG_MAX_SIZE)
}

/// The context as given at creation, with the fields of `now` and the current state.
pub(super) fn shown<C: Layout>(given: u32, now: &C, state: u32) -> C {
    let mut bytes = now.bytes().to_vec();
    store(&mut bytes, 0, 31, 0, given.into());
    store(&mut bytes, 0, STATE.0, STATE.1, state.into());
    C::read(&bytes)
}

bind! { WorkQueue <-> SqRow {
    pd <-> pd,
    uar_page <-> uar,
    log_wq_sz <-> log_size,
} shows row {
    wq_type = CYCLIC,
    page_offset = memory::page_offset(&row.memory),
    log_wq_pg_sz = memory::log_page_size(&row.memory),
    hw_counter = row.ci,
    sw_counter = row.pi,
    dbr_addr = row.dbr,
    log_wq_stride = WQE_BB.trailing_zeros() as u8,
} }

bind! { SqContext <-> SqRow {
    rlky <-> flags[SqRow::RLKY],
    flush_in_error_en <-> flags[SqRow::FLUSH],
    user_index <-> user_index,
    cqn <-> cqn,
} shows row {
    tis_lst_sz = (row.flags & SqRow::HAS_TIS != 0).into(),
    tis_num_0 = row.tis,
    wq = row.show(),
} }

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateSqIn = call.input()?;
    if call.step.config.strict.uid {
        Syndrome::RawTx.unless(call.uid == 0 || call.has_right(RAW_TX))?;
    }
    let c = input.ctx();
    let wq = c.wq();
    let plain = !c.hairpin() && !c.allow_swp() && !c.reg_umr() && !c.allow_multi_pkt_send_wqe();
    check(&wq, c.state(), plain && !c.cd_master() && c.packet_pacing_rate_limit_index() == 0)?;
    Syndrome::Stride.unless(1usize << wq.log_wq_stride() == WQE_BB)?;
    call.own::<PdRow>(wq.pd())?;
    call.shared::<UarRow>(wq.uar_page())?;
    call.own::<CqRow>(c.cqn())?;
    // A queue for control WQEs only has no TIS.
    let tis = match c.tis_lst_sz() {
        0 => None,
        1 => Some(call.own::<TisRow>(c.tis_num_0())?),
        _ => return Syndrome::NoSuchTis.refuse(),
    };
    let place = Given::of(&wq, CreateSqIn::SIZE).map(call, (WQE_BB as u64) << wq.log_wq_sz())?;
    let index = call.make::<SqRow>(|row| {
        row.take(&wq);
        row.take(&c);
        (row.memory, row.umems, row.dbr) = (place.memory, place.umems, place.dbr);
        row.tis = tis.unwrap_or(0);
        row.flags |= if tis.is_some() { SqRow::HAS_TIS } else { 0 };
        row.context = load(c.as_bytes(), 0, 31, 0) as u32;
    })?;
    call.created::<SqRow>(index)
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifySqIn = call.input()?;
    let index = call.named::<SqRow>()?;
    // Rate limits and queue groups are not supported.
    Syndrome::ModifyField.unless(input.modify_bitmask() == 0)?;
    let to = input.ctx().state();
    let row = call.row_mut::<SqRow>(index)?;
    Syndrome::QueueState.unless(input.sq_state() == row.state as u8 && may_go(row.state as u8, to))?;
    if row.state != u32::from(to) {
        row.state = to.into();
        if to == RESET {
            (row.pi, row.ci) = (0, 0);
        }
    }
    // The next doorbell finds the WQEs posted earlier; those left in an error state are flushed now.
    if to != RESET {
        call.func.make_sq_ready(index);
    }
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let row = call.row::<SqRow>(call.named::<SqRow>()?)?;
    let context = shown::<SqContext>(row.context, &row.show(), row.state);
    call.answer(&QuerySqOut::with(|s| s.sq_context(context)))
}
