//! Receive queues without a queue pair.

use super::{
    call::{Call, let_go},
    memory::{self, Layout as Memory},
    qp::LOG_MAX_RQ_STRIDE,
    refusal::{Done, Syndrome},
    sq::{CYCLIC, ERROR, LOG_MAX_SIZE, RESET, STATE, may_go},
};
use crate::{
    mlx5::ethernet,
    region::{Func, TimerKind},
    state::{CounterRow, CqRow, PdRow, RqRow},
};
use hwspec::{
    cmd::{CmdOut, rq_sq::*},
    context::{rq_sq::RqContext, wq::WorkQueue},
    layout::{load, store},
};

/// log2 of the smallest WQE in bytes: one data segment.
pub(super) const LOG_MIN_STRIDE: u8 = 4;
/// `rqc.mem_rq_type`: the queue has its own ring.
const INLINE: u8 = 0;
/// `modify_bitmask`: VLAN stripping, and the counter set.
const VSD: u64 = 1 << 1;
const COUNTER_SET: u64 = 1 << 3;

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateRqIn = call.input()?;
    let c = input.ctx();
    let wq = c.wq();
    Syndrome::Umem.unless(!wq.wq_umem_valid() && !wq.dbr_umem_valid())?;
    Syndrome::Signature.unless(!wq.wq_signature())?;
    let plain = !c.hairpin() && !c.delay_drop_en() && !c.scatter_fcs() && !wq.shampo_enable();
    Syndrome::QueueFlags.unless(plain && c.mem_rq_type() == INLINE && !wq.two_byte_shift_en())?;
    Syndrome::RqType.unless(wq.wq_type() == CYCLIC)?;
    Syndrome::QueueState.unless(c.state() == RESET)?;
    Syndrome::QueueSize.unless(wq.log_wq_sz() <= LOG_MAX_SIZE)?;
    Syndrome::Stride.unless((LOG_MIN_STRIDE..=LOG_MAX_RQ_STRIDE).contains(&wq.log_wq_stride()))?;
    // A queue that is never filled, for example one to drop packets, needs no domain: Linux leaves the field 0.
    let pd = call.own::<PdRow>(wq.pd(), Syndrome::NoSuchPd).ok();
    Syndrome::NoSuchPd.unless(pd.is_some() || wq.pd() == 0)?;
    let cq = call.own::<CqRow>(c.cqn(), Syndrome::NoSuchCq)?;
    counter_set(call, c.counter_set_id())?;
    let dbr = memory::record(wq.dbr_addr())?;
    let layout = Memory {
        log_page_size: wq.log_wq_pg_sz(),
        page_offset: wq.page_offset(),
        bytes: 1u64 << (wq.log_wq_sz() + wq.log_wq_stride()),
    };
    let memory = memory::map(call, CreateRqIn::SIZE, layout)?;
    let index = call.alloc::<RqRow>(0)?;
    pd.iter().for_each(|pd| call.hold::<PdRow>(*pd));
    call.hold::<CqRow>(cq);
    if let Some(row) = call.func.row_mut::<RqRow>(index) {
        row.memory = memory;
        row.dbr = dbr;
        row.cqn = c.cqn();
        row.pd = wq.pd();
        row.user_index = c.user_index();
        row.log_size = wq.log_wq_sz().into();
        row.log_stride = wq.log_wq_stride().into();
        row.flags |= if c.rlky() { RqRow::RLKY } else { 0 };
        row.flags |= if c.vsd() { RqRow::KEEP_VLAN } else { 0 };
        row.flags |= if c.flush_in_error_en() { RqRow::FLUSH } else { 0 };
        row.flags |= if pd.is_some() { RqRow::HAS_PD } else { 0 };
        row.counter_set = c.counter_set_id().into();
        row.context = load(c.as_bytes(), 0, 31, 0) as u32;
    }
    call.answer(&CreateRqOut::with(|s| s.rqn(call.func.number::<RqRow>(index))))
}

/// Checks a counter set; set 0 is the default.
fn counter_set(call: &Call<'_, '_, '_>, id: u8) -> Done {
    let known = id == 0 || call.own::<CounterRow>(id.into(), Syndrome::NoSuchCounter).is_ok();
    Syndrome::NoSuchCounter.unless(known)
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyRqIn = call.input()?;
    let index = call.own::<RqRow>(input.rqn(), Syndrome::NoSuchRq)?;
    let (fields, c) = (input.modify_bitmask(), input.ctx());
    Syndrome::ModifyField.unless(fields & !(VSD | COUNTER_SET) == 0)?;
    if fields & COUNTER_SET != 0 {
        counter_set(call, c.counter_set_id())?;
    }
    let Some(row) = call.func.row_mut::<RqRow>(index) else { return Syndrome::NoSuchRq.refuse() };
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
    call.answer(&CmdOut::zeroed())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryRqIn = call.input()?;
    let index = call.own::<RqRow>(input.rqn(), Syndrome::NoSuchRq)?;
    let Some(row) = call.func.row::<RqRow>(index) else { return Syndrome::NoSuchRq.refuse() };
    let (page_offset, log_page) = memory::page_layout(&row.memory);
    let mut wq = WorkQueue::zeroed();
    wq.set()
        .wq_type(CYCLIC)
        .page_offset(page_offset)
        .pd(row.pd)
        .dbr_addr(row.dbr)
        .hw_counter(row.ci)
        .sw_counter(row.pi)
        .log_wq_stride(row.log_stride as u8)
        .log_wq_pg_sz(log_page)
        .log_wq_sz(row.log_size as u8);
    let mut c = RqContext::zeroed();
    c.set().user_index(row.user_index).cqn(row.cqn).counter_set_id(row.counter_set as u8).wq(wq);
    let mut bytes = *c.as_bytes();
    store(&mut bytes, 0, 31, 0, row.context.into());
    store(&mut bytes, 0, STATE.0, STATE.1, row.state.into());
    let mut context = RqContext::from_bytes(bytes);
    context.set().vsd(row.flags & RqRow::KEEP_VLAN != 0);
    call.answer(&QueryRqOut::with(|s| s.rq_context(context)))
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyRqIn = call.input()?;
    let index = call.own::<RqRow>(input.rqn(), Syndrome::NoSuchRq)?;
    let refs = call.func.row::<RqRow>(index).map_or(0, |row| row.head.refs);
    Syndrome::InUse.unless(refs == 0)?;
    end(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the queue, even if other objects refer to it.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<RqRow>(index) else { return };
    let (memory, cqn) = (row.memory, row.cqn);
    let pd = (row.flags & RqRow::HAS_PD != 0).then_some(row.pd);
    func.forget_timer(index, TimerKind::Rq);
    memory::unmap(func, memory);
    pd.iter().for_each(|pd| let_go::<PdRow>(func, *pd));
    let_go::<CqRow>(func, cqn);
    func.free::<RqRow>(index);
}
