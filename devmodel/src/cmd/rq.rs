//! Receive queues without a queue pair.

use super::{
    bind::{Bound, cast},
    call::Call,
    memory::{self, Given},
    object,
    qp::LOG_MAX_RQ_STRIDE,
    refusal::{Done, Syndrome},
    sq::{check, may_go, shown},
};
use crate::{
    mlx5::ethernet,
    region::{Func, TimerKind},
    state::{CounterRow, CqRow, PdRow, RqRow},
};
use hwspec::{
    cmd::rq_sq::*,
    context::{rq_sq::*, wq::*},
    layout::load,
};

/// log2 of the smallest WQE in bytes: one data segment.
pub(super) const LOG_MIN_STRIDE: u8 = 4;
/// `rqc.mem_rq_type`: the queue has its own ring.
const INLINE: u8 = 0;
/// `modify_bitmask`: the counter set.
const COUNTER_SET: u64 = 1 << 3;

bind! { WorkQueue <-> RqRow {
    pd <-> pd,
    log_wq_stride <-> log_stride,
    log_wq_sz <-> log_size,
} shows row {
    wq_type = CYCLIC,
    page_offset = memory::page_offset(&row.memory),
    log_wq_pg_sz = memory::log_page_size(&row.memory),
    hw_counter = row.ci,
    sw_counter = row.pi,
    dbr_addr = row.dbr,
} }

bind! { RqContext <-> RqRow {
    rlky <-> flags[RqRow::RLKY],
    vsd <-> flags[RqRow::KEEP_VLAN],
    flush_in_error_en <-> flags[RqRow::FLUSH],
    user_index <-> user_index,
    cqn <-> cqn,
    counter_set_id <-> counter_set,
} shows row { wq = row.show() } }

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateRqIn = call.input()?;
    let c = input.ctx();
    let wq = c.wq();
    let plain = !c.hairpin() && !c.delay_drop_en() && !c.scatter_fcs() && !wq.shampo_enable();
    check(&wq, c.state(), plain && c.mem_rq_type() == INLINE && !wq.two_byte_shift_en())?;
    Syndrome::Stride.unless((LOG_MIN_STRIDE..=LOG_MAX_RQ_STRIDE).contains(&wq.log_wq_stride()))?;
    // A queue that is never filled, for example one to drop packets, needs no domain: Linux leaves the field 0.
    let pd = call.own::<PdRow>(wq.pd()).ok();
    Syndrome::NoSuchPd.unless(pd.is_some() || wq.pd() == 0)?;
    call.own::<CqRow>(c.cqn())?;
    counter_set(call, c.counter_set_id())?;
    let place = Given::of(&wq, CreateRqIn::SIZE).map(call, 1 << (wq.log_wq_sz() + wq.log_wq_stride()))?;
    let index = call.make::<RqRow>(|row| {
        row.take(&wq);
        row.take(&c);
        (row.memory, row.umems, row.dbr) = (place.memory, place.umems, place.dbr);
        row.flags |= if pd.is_some() { RqRow::HAS_PD } else { 0 };
        row.context = load(c.as_bytes(), 0, 31, 0) as u32;
    })?;
    call.created::<RqRow>(index)
}

/// Checks a counter set; set 0 is the default. All contexts may name those of the function's driver: Linux counts the raw packet QPs of its
/// users in the port's set.
fn counter_set(call: &Call<'_, '_, '_>, id: u8) -> Done {
    let usable = |row: &CounterRow| row.head.uid == 0 || call.may_use(row.head.uid);
    Syndrome::NoSuchCounter.unless(id == 0 || call.func.get::<CounterRow>(id.into()).is_some_and(usable))
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyRqIn = call.input()?;
    let index = call.named::<RqRow>()?;
    let (fields, c) = (input.modify_bitmask(), input.ctx());
    Syndrome::ModifyField.unless(fields & !(VSD | COUNTER_SET) == 0)?;
    if fields & COUNTER_SET != 0 {
        counter_set(call, c.counter_set_id())?;
    }
    let row = call.row_mut::<RqRow>(index)?;
    let state = row.state as u8;
    Syndrome::QueueState.unless(input.rq_state() == state && may_go(state, c.state()))?;
    let to = c.state();
    row.state = to.into();
    if to == RESET {
        (row.pi, row.ci) = (0, 0);
    }
    if fields & VSD != 0 {
        row.flags = row.flags & !RqRow::KEEP_VLAN | if c.vsd() { RqRow::KEEP_VLAN } else { 0 };
    }
    if fields & COUNTER_SET != 0 {
        row.counter_set = c.counter_set_id().into();
    }
    match to {
        ERROR => ethernet::flush_receives(call.func, call.step.now, index),
        _ => call.func.forget_timer(index, TimerKind::Rq),
    }
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let row = call.row::<RqRow>(call.named::<RqRow>()?)?;
    let mut context = shown::<RqContext>(row.context, &row.show(), row.state);
    context.set().vsd(row.flags & RqRow::KEEP_VLAN != 0);
    call.answer(&QueryRqOut::with(|s| s.rq_context(context)))
}

/// Destroys the queue, even if other objects refer to it.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    func.forget_timer(index, TimerKind::Rq);
    object::end::<RqRow>(func, index);
}
