//! Shared receive queues: SRQ, XRC SRQ and RMP, which differ only in their contexts.

use super::{
    bind::{Bound, cast},
    call::Call,
    memory::{self, Given},
    refusal::{Done, Syndrome},
};
use crate::state::{CqRow, PdRow, SrqKind, SrqRow, XrcdRow};
use hwspec::{
    cmd::{Opcode, srq::*},
    context::{srq::*, wq::*},
    layout::Layout,
};
use zerocopy::FromZeros;

/// log2 of the maximum number of WQEs.
pub(super) const LOG_MAX_SIZE: u8 = 15;
/// log2 of a WQE in bytes: at least a next segment and one data segment.
const LOG_STRIDES: std::ops::RangeInclusive<u32> = 5..=9;

bind! { SrqContext <-> SrqRow {
    log_srq_size <-> log_size,
    pd <-> pd,
    lwm <-> lwm,
} shows row {
    dbr_addr = row.dbr,
    log_rq_stride = row.log_stride as u8 - 4,
    page_offset = memory::page_offset(&row.memory),
    log_page_size = memory::log_page_size(&row.memory),
    wqe_cnt = row.wq().waiting(),
} }

bind! { XrcSrqContext <-> SrqRow {
    log_xrc_srq_size <-> log_size,
    xrcd <-> xrcd,
    cqn <-> cqn,
    user_index <-> user_index,
    pd <-> pd,
    lwm <-> lwm,
} shows row {
    log_rq_stride = row.log_stride as u8 - 4,
    page_offset = memory::page_offset(&row.memory),
    log_page_size = memory::log_page_size(&row.memory),
    wqe_cnt = row.wq().waiting(),
    db_record_addr_h = (row.dbr >> 32) as u32,
    db_record_addr_l = row.dbr as u32 >> 2,
} }

bind! { WorkQueue <-> SrqRow {
    lwm <-> lwm,
    pd <-> pd,
    log_wq_stride <-> log_stride,
    log_wq_sz <-> log_size,
    wq_type <-> cyclic,
} shows row {
    dbr_addr = row.dbr,
    page_offset = memory::page_offset(&row.memory),
    log_wq_pg_sz = memory::log_page_size(&row.memory),
} }

fn kind_of(op: Opcode) -> SrqKind {
    match op {
        Opcode::CreateXrcSrq | Opcode::QueryXrcSrq | Opcode::DestroyXrcSrq | Opcode::ArmXrcSrq => {
            SrqKind::Xrc
        }
        Opcode::CreateRmp | Opcode::QueryRmp | Opcode::DestroyRmp | Opcode::ModifyRmp => SrqKind::Rmp,
        _ => SrqKind::Srq,
    }
}

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let kind = kind_of(call.opcode);
    Syndrome::InputLength.unless(call.input.len() >= CreateSrqIn::SIZE)?;
    let (mut row, given) = match kind {
        SrqKind::Srq => srq(&CreateSrqIn::read(call.input))?,
        SrqKind::Xrc => xrc(&CreateXrcSrqIn::read(call.input))?,
        SrqKind::Rmp => rmp(&CreateRmpIn::read(call.input))?,
    };
    Syndrome::QueueSize.unless(row.log_size <= LOG_MAX_SIZE.into())?;
    Syndrome::Stride.unless(LOG_STRIDES.contains(&row.log_stride))?;
    call.own::<PdRow>(row.pd)?;
    if kind == SrqKind::Xrc {
        call.own::<CqRow>(row.cqn)?;
        call.shared::<XrcdRow>(row.xrcd)?;
    }
    let place = given.map(call, 1 << (row.log_size + row.log_stride))?;
    row.kind = kind as u32;
    (row.memory, row.umems, row.dbr) = (place.memory, place.umems, place.dbr);
    let index = call.make::<SrqRow>(|new| *new = row)?;
    let names_itself =
        || CreateXrcSrqIn::read(call.input).xrc_srq_context_entry().user_index_equal_xrc_srqn();
    if kind == SrqKind::Xrc && names_itself() {
        call.row_mut::<SrqRow>(index)?.user_index = call.func.number::<SrqRow>(index);
    }
    call.created::<SrqRow>(index)
}

fn srq(input: &CreateSrqIn) -> Done<(SrqRow, Given)> {
    let (c, mut row) = (input.srq_context_entry(), SrqRow::new_zeroed());
    Syndrome::Signature.unless(!c.wq_signature())?;
    row.take(&c);
    row.log_stride = u32::from(c.log_rq_stride()) + 4;
    let pages = (c.log_page_size(), c.page_offset());
    Ok((row, Given { list: CreateSrqIn::SIZE, pages, ring: None, record: None, dbr: c.dbr_addr() }))
}

fn xrc(input: &CreateXrcSrqIn) -> Done<(SrqRow, Given)> {
    let (c, mut row) = (input.xrc_srq_context_entry(), SrqRow::new_zeroed());
    Syndrome::Umem.unless(!input.xrc_srq_umem_valid() && !c.dbr_umem_valid())?;
    Syndrome::Signature.unless(!c.wq_signature())?;
    Syndrome::RqType.unless(!c.basic_cyclic_rcv_wqe())?;
    row.take(&c);
    row.log_stride = u32::from(c.log_rq_stride()) + 4;
    let pages = (c.log_page_size(), c.page_offset());
    let dbr = u64::from(c.db_record_addr_h()) << 32 | u64::from(c.db_record_addr_l()) << 2;
    Ok((row, Given { list: CreateXrcSrqIn::SIZE, pages, ring: None, record: None, dbr }))
}

/// Linked or cyclic; in both each WQE starts with a next segment.
fn rmp(input: &CreateRmpIn) -> Done<(SrqRow, Given)> {
    let (c, mut row) = (input.ctx(), SrqRow::new_zeroed());
    let wq = c.wq();
    Syndrome::Signature.unless(!wq.wq_signature())?;
    Syndrome::RqType.unless(wq.wq_type() <= CYCLIC && !c.basic_cyclic_rcv_wqe())?;
    row.take(&wq);
    Ok((row, Given::of(&wq, CreateRmpIn::SIZE)))
}

/// The index of the queue that the command names, if it is of its kind.
fn named(call: &Call<'_, '_, '_>) -> Done<u32> {
    let index = call.named::<SrqRow>()?;
    Syndrome::NoSuchSrq.unless(call.row::<SrqRow>(index)?.kind == kind_of(call.opcode) as u32)?;
    Ok(index)
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let row = *call.row::<SrqRow>(named(call)?)?;
    match kind_of(call.opcode) {
        SrqKind::Srq => call.answer(&QuerySrqOut::with(|s| s.srq_context_entry(row.show()))),
        SrqKind::Xrc => call.answer(&QueryXrcSrqOut::with(|s| s.xrc_srq_context_entry(row.show()))),
        SrqKind::Rmp => {
            let context = RmpContext::with(|s| s.state(RMP_READY).wq(row.show()));
            call.answer(&QueryRmpOut::with(|s| s.rmp_context(context)))
        }
    }
}

pub(super) fn arm(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ArmRqIn = call.input()?;
    let index = named(call)?;
    set_limit(call, index, input.lwm())
}

fn set_limit(call: &mut Call<'_, '_, '_>, index: u32, lwm: u16) -> Done {
    let row = call.row_mut::<SrqRow>(index)?;
    Syndrome::QueueSize.unless(u32::from(lwm) < 1 << row.log_size)?;
    row.lwm = lwm.into();
    Ok(())
}

pub(super) fn modify_rmp(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyRmpIn = call.input()?;
    let index = named(call)?;
    let fields = u64::from_be_bytes(input.bitmask());
    Syndrome::ModifyField.unless(fields & !RMP_LIMIT == 0 && input.rmp_state() == RMP_READY)?;
    if fields & RMP_LIMIT != 0 {
        set_limit(call, index, input.ctx().wq().lwm())?;
    }
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let index = named(call)?;
    call.end::<SrqRow>(index)
}
