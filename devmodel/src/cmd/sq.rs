//! Send queues without a queue pair.

use super::{
    call::{Call, let_go},
    memory::{self, Layout as Memory},
    refusal::{Done, Syndrome},
};
use crate::{
    region::Func,
    state::{CqRow, PdRow, SqRow, TisRow, UarRow},
};
use hwspec::{
    cmd::{CmdOut, rq_sq::*, uctx::RAW_TX},
    context::{rq_sq::SqContext, wq::WorkQueue},
    layout::{load, store},
    wqe::WQE_BB,
};

/// log2 of the maximum number of basic blocks of a send queue, and of WQEs of a receive queue.
pub(super) const LOG_MAX_SIZE: u8 = 15;
/// `wq.wq_type`: a ring.
pub(super) const CYCLIC: u8 = 1;
/// State of a send or receive queue: reset.
pub(super) const RESET: u8 = 0;
/// State of a send or receive queue: ready.
pub(super) const READY: u8 = 1;
/// State of a send or receive queue: error.
pub(super) const ERROR: u8 = 3;
/// Bits of the state in the first dword of both kinds of contexts.
pub(super) const STATE: (usize, usize) = (23, 20);

/// True if the transition between the two states is legal (PRM: RQ and SQ states).
pub(super) fn may_go(from: u8, to: u8) -> bool {
    from == to && to != RESET || matches!((from, to), (RESET, READY) | (_, RESET) | (_, ERROR))
}

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateSqIn = call.input()?;
    if call.step.config.strict.uid {
        Syndrome::RawTx.unless(call.uid == 0 || call.has_right(RAW_TX))?;
    }
    let c = input.ctx();
    let wq = c.wq();
    Syndrome::Umem.unless(!wq.wq_umem_valid() && !wq.dbr_umem_valid())?;
    Syndrome::Signature.unless(!wq.wq_signature())?;
    let plain = !c.hairpin() && !c.allow_swp() && !c.reg_umr() && !c.allow_multi_pkt_send_wqe();
    Syndrome::QueueFlags.unless(plain && !c.cd_master() && c.packet_pacing_rate_limit_index() == 0)?;
    Syndrome::RqType.unless(wq.wq_type() == CYCLIC)?;
    Syndrome::QueueState.unless(c.state() == RESET)?;
    Syndrome::QueueSize.unless(wq.log_wq_sz() <= LOG_MAX_SIZE)?;
    Syndrome::Stride.unless(1usize << wq.log_wq_stride() == WQE_BB)?;
    let pd = call.own::<PdRow>(wq.pd(), Syndrome::NoSuchPd)?;
    let uar = call.shared::<UarRow>(wq.uar_page(), Syndrome::NoSuchUar)?;
    let cq = call.own::<CqRow>(c.cqn(), Syndrome::NoSuchCq)?;
    // A queue for control WQEs only has no TIS.
    let tis = match c.tis_lst_sz() {
        0 => None,
        1 => Some(call.own::<TisRow>(c.tis_num_0(), Syndrome::NoSuchTis)?),
        _ => return Syndrome::NoSuchTis.refuse(),
    };
    let dbr = memory::record(wq.dbr_addr())?;
    let layout = Memory {
        log_page_size: wq.log_wq_pg_sz(),
        page_offset: wq.page_offset(),
        bytes: (WQE_BB as u64) << wq.log_wq_sz(),
    };
    let memory = memory::map(call, CreateSqIn::SIZE, layout)?;
    let index = call.alloc::<SqRow>(0)?;
    call.hold::<PdRow>(pd);
    call.hold::<UarRow>(uar);
    call.hold::<CqRow>(cq);
    tis.iter().for_each(|tis| call.hold::<TisRow>(*tis));
    if let Some(row) = call.func.row_mut::<SqRow>(index) {
        row.memory = memory;
        row.dbr = dbr;
        row.cqn = c.cqn();
        row.pd = wq.pd();
        row.uar = uar;
        row.tis = tis.unwrap_or(0);
        row.flags |= if tis.is_some() { SqRow::HAS_TIS } else { 0 };
        row.user_index = c.user_index();
        row.log_size = wq.log_wq_sz().into();
        row.flags |= if c.rlky() { SqRow::RLKY } else { 0 };
        row.flags |= if c.flush_in_error_en() { SqRow::FLUSH } else { 0 };
        row.context = load(c.as_bytes(), 0, 31, 0) as u32;
    }
    call.answer(&CreateSqOut::with(|s| s.sqn(call.func.number::<SqRow>(index))))
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifySqIn = call.input()?;
    let index = call.own::<SqRow>(input.sqn(), Syndrome::NoSuchSq)?;
    // Rate limits and queue groups are not supported.
    Syndrome::ModifyField.unless(input.modify_bitmask() == 0)?;
    let to = input.ctx().state();
    let Some(row) = call.func.row_mut::<SqRow>(index) else { return Syndrome::NoSuchSq.refuse() };
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
    call.answer(&CmdOut::zeroed())
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QuerySqIn = call.input()?;
    let index = call.own::<SqRow>(input.sqn(), Syndrome::NoSuchSq)?;
    let Some(row) = call.func.row::<SqRow>(index) else { return Syndrome::NoSuchSq.refuse() };
    let (page_offset, log_page) = memory::page_layout(&row.memory);
    let mut wq = WorkQueue::zeroed();
    wq.set()
        .wq_type(CYCLIC)
        .page_offset(page_offset)
        .pd(row.pd)
        .uar_page(row.uar)
        .dbr_addr(row.dbr)
        .hw_counter(row.ci)
        .sw_counter(row.pi)
        .log_wq_stride(WQE_BB.trailing_zeros() as u8)
        .log_wq_pg_sz(log_page)
        .log_wq_sz(row.log_size as u8);
    let mut c = SqContext::zeroed();
    c.set()
        .user_index(row.user_index)
        .cqn(row.cqn)
        .tis_lst_sz((row.flags & SqRow::HAS_TIS != 0).into())
        .tis_num_0(row.tis)
        .wq(wq);
    let mut bytes = *c.as_bytes();
    store(&mut bytes, 0, 31, 0, row.context.into());
    store(&mut bytes, 0, STATE.0, STATE.1, row.state.into());
    call.answer(&QuerySqOut::with(|s| s.sq_context(SqContext::from_bytes(bytes))))
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroySqIn = call.input()?;
    let index = call.own::<SqRow>(input.sqn(), Syndrome::NoSuchSq)?;
    end(call.func, index);
    call.answer(&CmdOut::zeroed())
}

/// Destroys the queue without completions.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    let Some(row) = func.row::<SqRow>(index) else { return };
    let (memory, pd, uar, cqn) = (row.memory, row.pd, row.uar, row.cqn);
    let tis = (row.flags & SqRow::HAS_TIS != 0).then_some(row.tis);
    memory::unmap(func, memory);
    let_go::<PdRow>(func, pd);
    let_go::<UarRow>(func, uar);
    let_go::<CqRow>(func, cqn);
    tis.iter().for_each(|tis| let_go::<TisRow>(func, *tis));
    func.free::<SqRow>(index);
}
