//! Event queues.
//!
//! EQ numbers have eight bits, in commands as in the doorbell, and a function can be opened more often than that. So numbers
//! are local to a user context: two queues share a number only if they belong to different contexts, neither of them uid 0,
//! and their consumer indices are updated through different doorbell pages (`mlx5::event::number`). On a card, `DESTROY_EQ`
//! has no uid. Here it may have one, which identifies the owner of the queue; without one an ambiguous number is refused.

use super::{
    bind::{Bound, cast},
    call::Call,
    caps, memory,
    refusal::{Done, Syndrome},
    strict,
};
use crate::{
    mlx5::event,
    state::{EqRow, MSIX_VECTORS, UarRow},
};
use hwspec::{
    cmd::eq::*,
    context::{ArmState, eq::EqContext},
    eqe::Eqe,
    layout::{Bits, prefix},
};

/// log2 of the maximum size of an event queue.
pub(super) const LOG_MAX_SIZE: u8 = 16;
/// log2 of the maximum number of event queues of a user context.
pub(super) const LOG_NUMBERS: u8 = 7;

bind! { EqContext <-> EqRow {
    log_eq_size <-> log_size,
    uar_page <-> uar,
    intr <-> vector,
} shows row {
    st = (if row.armed != 0 { ArmState::Armed } else { ArmState::Fired }).into_bits() as u8,
    page_offset = memory::page_offset(&row.memory),
    log_page_size = memory::log_page_size(&row.memory),
    consumer_counter = row.ci & 0xff_ffff,
    producer_counter = row.pi & 0xff_ffff,
} }

/// The event queue `number` for the caller's CQs: one of its own, otherwise one shared by the function's driver.
pub(super) fn shared(call: &Call<'_, '_, '_>, number: u32) -> Done<u32> {
    let strict = call.step.config.strict.uid;
    let of = |uid: u16| {
        let of = |row: &EqRow| row.head.uid == uid && (uid == call.uid || !strict || row.shared != 0);
        event::called(call.func, number).find(|(_, row)| of(row))
    };
    let any = || event::called(call.func, number).find(|(_, row)| call.may_use(row.head.uid));
    match of(call.uid).or_else(|| of(0)).or_else(any) {
        Some((index, _)) => Ok(index),
        None => Syndrome::NoSuchEq.refuse(),
    }
}

/// Like [`shared`], restricted to the caller's own. The function's driver may name those of all contexts.
fn own(call: &Call<'_, '_, '_>, number: u32) -> Done<u32> {
    let index = shared(call, number)?;
    Syndrome::NoSuchEq.unless(call.may_use(call.row::<EqRow>(index)?.head.uid))?;
    Ok(index)
}

/// Allocates a row with a number that no other queue of the caller, of doorbell page `uar` or of the function's driver has.
/// On a strict adapter, as on a card, no two queues share a number.
fn alloc(call: &mut Call<'_, '_, '_>, uar: u32) -> Done<u32> {
    let strict = call.step.config.strict.reserved;
    let mut taken = Vec::new();
    let found = loop {
        let index = match call.alloc::<EqRow>() {
            Ok(index) => index,
            refused => break refused,
        };
        let uids = [0, call.uid];
        let clashes = |(other, row): (u32, &EqRow)| {
            other != index && (strict || call.uid == 0 || uids.contains(&row.head.uid) || row.uar == uar)
        };
        if event::number(index) != 0 && !event::called(call.func, event::number(index)).any(clashes) {
            break Ok(index);
        }
        taken.push(index);
    };
    taken.into_iter().for_each(|index| call.func.free::<EqRow>(index));
    found
}

pub(super) fn create(call: &mut Call<'_, '_, '_>) -> Done {
    let input: CreateEqIn = call.input()?;
    let context = input.eq_context_entry();
    let log_size = context.log_eq_size();
    Syndrome::QueueSize.unless(log_size <= LOG_MAX_SIZE)?;
    Syndrome::Vector.unless(usize::from(context.intr()) < MSIX_VECTORS)?;
    let uar = call.shared::<UarRow>(context.uar_page())?;
    let mask = input.event_bitmask();
    let mask: [u64; 4] = std::array::from_fn(|i| u64::from_be_bytes(prefix(&mask[8 * i..])));
    let strict = call.step.config.strict;
    if strict.events {
        strict::events(call, &caps::general(call.func, call.step.config, false), mask)?;
    }
    if strict.uid {
        Syndrome::EventOwner.unless(call.uid == 0 || mask == [0; 4])?;
    }
    let for_all = call.for_all;
    let pages = (context.log_page_size(), context.page_offset());
    let memory = memory::map(call, CreateEqIn::SIZE, pages, (Eqe::SIZE as u64) << log_size)?;
    let index = alloc(call, uar)?;
    call.fill::<EqRow>(index, |row| {
        row.take(&context);
        (row.memory, row.mask, row.shared) = (memory, mask, for_all.into());
    })?;
    call.answer(&CreateEqOut::with(|s| s.eq_number(event::number(index) as u8)))
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryEqIn = call.input()?;
    let row = call.row::<EqRow>(own(call, input.eq_number().into())?)?;
    let out = QueryEqOut::with(|s| s.eq_context_entry(row.show()).event_bitmask(row.mask[0]));
    call.answer(&out)
}

pub(super) fn destroy(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DestroyEqIn = call.input()?;
    let number = input.eq_number().into();
    Syndrome::EqNumber.unless(call.uid != 0 || event::called(call.func, number).count() < 2)?;
    let index = own(call, number)?;
    call.end::<EqRow>(index)
}
