//! Completion queues.

use super::{
    bind::{Bound, cast},
    call::Call,
    eq,
    memory::{self, Given, entries},
    object,
    refusal::{Done, Syndrome},
};
use crate::{
    mlx5::{completion, event},
    region::{Effect, Func, TimerKind},
    state::{CqRow, UarRow},
};
use hwspec::{
    cmd::cq::*,
    context::{ArmState, CqStatus, cq::CqContext},
    cqe::{Cqe64, CqeOpcode},
    layout::Bits,
};

/// log2 of the maximum size of a completion queue.
pub(super) const LOG_MAX_SIZE: u8 = 22;
/// `modify_field_select`: `oi`.
const OVERRUN: u32 = 1 << 2;
/// `resize_field_select`: the size, without which there is no resize.
const RESIZE_SIZE: u32 = 1 << 0;

bind! { CqContext <-> CqRow {
    cqe_sz <-> cqe_size,
    oi <-> flags[CqRow::OVERRUN_IGNORED],
    cc <-> flags[CqRow::COLLAPSED],
    cqe_comp_en <-> flags[CqRow::COMPRESSIBLE],
    log_cq_size <-> log_size,
    uar_page <-> uar,
    cq_period <-> moderation[0],
    cq_max_count <-> moderation[1],
} shows row {
    status = row.status as u8,
    st = row.arm as u8,
    page_offset = memory::page_offset(&row.memory),
    log_page_size = memory::log_page_size(&row.memory),
    c_eqn_or_apu_element = event::number(row.eqn),
    consumer_counter = row.ci & 0xff_ffff,
    producer_counter = row.pi & 0xff_ffff,
    dbr_addr = row.dbr,
} }

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateCqIn = call.input()?;
    let context = input.cq_context();
    let log_size = context.log_cq_size();
    Syndrome::QueueSize.unless(log_size <= LOG_MAX_SIZE)?;
    // Unsupported: queues of the accelerator.
    let plain = context.cqe_sz() <= 1 && !context.apu_cq();
    Syndrome::CqFlags.unless(plain)?;
    call.shared::<UarRow>(context.uar_page())?;
    let eqn = eq::shared(call, context.c_eqn_or_apu_element())?;
    let given = Given {
        list: CreateCqIn::SIZE,
        pages: (context.log_page_size(), context.page_offset()),
        ring: input.cq_umem_valid().then_some((input.cq_umem_id(), input.cq_umem_offset())),
        record: context.dbr_umem_valid().then_some(context.dbr_umem_id()),
        dbr: context.dbr_addr(),
    };
    let place = given.map(call, 64 << (log_size + context.cqe_sz()))?;
    let index = call.make::<CqRow>(|row| {
        row.take(&context);
        (row.memory, row.umems, row.dbr, row.eqn) = (place.memory, place.umems, place.dbr, eqn);
        row.arm = ArmState::Fired.into_bits() as u32;
    })?;
    call.created::<CqRow>(index)
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let context = call.row::<CqRow>(call.named::<CqRow>()?)?.show();
    call.answer(&QueryCqOut::with(|s| s.cq_context(context)))
}

pub(super) fn modify(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ModifyCqIn = call.input()?;
    let index = call.own::<CqRow>(input.cqn())?;
    if call.op_mod == RESIZE {
        return resize(call, &input, index);
    }
    let fields = u32::from_be_bytes(input.modify_field_select_resize_field_select());
    Syndrome::ModifyField.unless(fields & !(PERIOD | COUNT | OVERRUN) == 0)?;
    let context = input.cq_context();
    let row = call.row_mut::<CqRow>(index)?;
    let ignored = if context.oi() { CqRow::OVERRUN_IGNORED } else { 0 };
    let has = |field| fields & field != 0;
    select! { has:
        PERIOD => row.moderation[0] = context.cq_period();
        COUNT => row.moderation[1] = context.cq_max_count();
        OVERRUN => row.flags = row.flags & !CqRow::OVERRUN_IGNORED | ignored;
    }
    Ok(())
}

/// Moves the queue to new memory. A last entry in the old memory marks the position from which the new memory is
/// used. The driver copies the entries it has not polled yet, so these and the last entry must fit in both.
fn resize(call: &mut Call<'_, '_, '_>, input: &ModifyCqIn, index: u32) -> Done {
    let fields = u32::from_be_bytes(input.modify_field_select_resize_field_select());
    Syndrome::ModifyField.unless(fields & !RESIZE_FIELDS == 0 && fields & RESIZE_SIZE != 0)?;
    // New memory is a page list, which is not open to callers that may only use user memory objects.
    Syndrome::Umem.unless(!input.cq_umem_valid())?;
    let context = input.cq_context();
    let log_size = context.log_cq_size();
    Syndrome::QueueSize.unless(log_size <= LOG_MAX_SIZE)?;
    let row = *call.row::<CqRow>(index)?;
    Syndrome::CqFlags.unless(u32::from(context.cqe_sz()) == row.cqe_size)?;
    let ci = completion::consumed(call.func, call.step.host, &row);
    let waiting = row.pi.wrapping_sub(ci) & 0xff_ffff;
    let fits = waiting < 1 << row.log_size && waiting < 1 << log_size;
    Syndrome::QueueSize.unless(fits && row.status == u32::from(CqStatus::Ok.raw()))?;
    let pages = (context.log_page_size(), context.page_offset());
    let memory = memory::map(call, ModifyCqIn::SIZE, pages, 64 << (log_size + context.cqe_sz()))?;
    let (last, owner) = completion::next_entry(call.func, &row);
    let cqe = Cqe64::with(|s| s.opcode(CqeOpcode::ResizeCq).owner(owner));
    if let Some(at) = last {
        call.func.effect(Effect::Write { at, data: cqe.as_bytes() });
    }
    call.func.free_mtt(entries(&row.memory));
    memory::umem(row.umems[0]).into_iter().for_each(|umem| umem.drop(call.func));
    let row = call.row_mut::<CqRow>(index)?;
    row.memory = memory;
    row.umems[0] = 0;
    row.log_size = log_size.into();
    row.pi = row.pi.wrapping_add(1);
    row.ci = ci;
    Ok(())
}

/// Destroys the completion queue, even if other objects refer to it.
pub(super) fn end(func: &mut Func<'_>, index: u32) {
    func.forget_timer(index, TimerKind::Cq);
    object::end::<CqRow>(func, index);
}
