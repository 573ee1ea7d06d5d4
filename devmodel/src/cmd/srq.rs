//! Shared receive queues: SRQ, XRC SRQ and RMP, which differ only in their contexts.

use super::{
    bind::{Bound, cast},
    call::Call,
    memory,
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
    dbr_addr <-> dbr,
} shows row {
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
    dbr_addr <-> dbr,
    log_wq_stride <-> log_stride,
    log_wq_sz <-> log_size,
} shows row {
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
    let mut given = SrqRow::new_zeroed();
    let (mut umem, mut cyclic, mut index_is_number) = (false, false, false);
    let (pages, signature) = match kind {
        SrqKind::Srq => {
            let c = CreateSrqIn::read(call.input).srq_context_entry();
            given.take(&c);
            given.log_stride = u32::from(c.log_rq_stride()) + 4;
            ((c.log_page_size(), c.page_offset()), c.wq_signature())
        }
        SrqKind::Xrc => {
            let input = CreateXrcSrqIn::read(call.input);
            let c = input.xrc_srq_context_entry();
            given.take(&c);
            given.log_stride = u32::from(c.log_rq_stride()) + 4;
            given.dbr = u64::from(c.db_record_addr_h()) << 32 | u64::from(c.db_record_addr_l()) << 2;
            umem = input.xrc_srq_umem_valid() || c.dbr_umem_valid();
            cyclic = c.basic_cyclic_rcv_wqe();
            index_is_number = c.user_index_equal_xrc_srqn();
            ((c.log_page_size(), c.page_offset()), c.wq_signature())
        }
        SrqKind::Rmp => {
            let c = CreateRmpIn::read(call.input).ctx();
            let wq = c.wq();
            given.take(&wq);
            umem = wq.wq_umem_valid() || wq.dbr_umem_valid();
            cyclic = wq.wq_type() != LINKED_LIST || c.basic_cyclic_rcv_wqe();
            ((wq.log_wq_pg_sz(), wq.page_offset()), wq.wq_signature())
        }
    };
    Syndrome::Umem.unless(!umem)?;
    Syndrome::Signature.unless(!signature)?;
    Syndrome::RqType.unless(!cyclic)?;
    Syndrome::QueueSize.unless(given.log_size <= LOG_MAX_SIZE.into())?;
    Syndrome::Stride.unless(LOG_STRIDES.contains(&given.log_stride))?;
    call.own::<PdRow>(given.pd)?;
    if kind == SrqKind::Xrc {
        call.own::<CqRow>(given.cqn)?;
        call.shared::<XrcdRow>(given.xrcd)?;
    }
    memory::record(given.dbr)?;
    given.kind = kind as u32;
    given.memory = memory::map(call, CreateSrqIn::SIZE, pages, 1u64 << (given.log_size + given.log_stride))?;
    let index = call.make::<SrqRow>(|row| *row = given)?;
    if index_is_number {
        call.row_mut::<SrqRow>(index)?.user_index = call.func.number::<SrqRow>(index);
    }
    call.created::<SrqRow>(index)
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
