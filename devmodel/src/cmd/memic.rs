//! Device memory: pages within the adapter, allocated by address in BAR0.

use super::{
    call::Call,
    refusal::{Done, Refused, Syndrome},
};
use crate::{
    region::{
        Memic, Table,
        memic::{PAGE, SIZE, WITHIN},
    },
    state::MemicRow,
};
use hwspec::{cmd::memic::*, context::caps::DeviceMemCap, pcie::MEMIC_BAR};

/// log2 of the smallest allocation.
const LOG_UNIT: u8 = 12;
/// The largest alignment, as encoded in commands.
const ALIGNMENT: u8 = LOG_UNIT - LOG_ALIGNMENT_UNIT as u8;

/// The advertised capabilities.
pub(super) fn caps() -> DeviceMemCap {
    DeviceMemCap::with(|s| {
        s.memic(true)
            .log_min_memic_alloc_size(LOG_UNIT)
            .log_max_memic_addr_alignment(ALIGNMENT)
            .memic_bar_start_addr(MEMIC_BAR)
            .memic_bar_size(SIZE)
            .max_memic_size(SIZE)
    })
}

/// Offset in the function's device memory of address `at` in BAR0.
fn offset(at: u64) -> Option<u32> {
    at.checked_sub(MEMIC_BAR).filter(|at| *at <= SIZE.into()).map(|at| at as u32)
}

/// `ALLOC_MEMIC`: allocates the first free place within the requested range.
pub(super) fn alloc(call: &mut Call<'_, '_, '_>) -> Done {
    let input: AllocMemicIn = call.input()?;
    Syndrome::NoMemic.unless(call.step.config.strict.card.has_later_features())?;
    let start = offset(input.range_start_addr()).ok_or(Refused(Syndrome::Memic))?;
    let end = start.saturating_add(input.range_size()).min(SIZE);
    let len = input.memic_size().checked_next_multiple_of(PAGE as u32).ok_or(Refused(Syndrome::Memic))?;
    Syndrome::Memic.unless(len > 0 && len <= SIZE && input.log_memic_addr_alignment() <= ALIGNMENT)?;
    let taken = call.func.objects::<MemicRow>().map(|(_, row)| (row.first, row.len));
    let mut taken: Vec<(u32, u32)> = taken.collect();
    taken.sort_unstable();
    let mut first = start.next_multiple_of(PAGE as u32);
    for (at, bytes) in taken {
        if first + len <= at {
            break;
        }
        first = first.max(at + bytes);
    }
    Syndrome::NoMemic.unless(first.checked_add(len).is_some_and(|behind| behind <= end))?;
    call.make::<MemicRow>(|row| (row.first, row.len) = (first, len))?;
    let (from, to) = (first / PAGE as u32, (first + len) / PAGE as u32);
    call.func.back_rows(Table::MemicPage, from, to).or(Err(Refused(Syndrome::NoMemory)))?;
    // Clears the contents left by an earlier owner.
    let memic = Memic::of(call.func.region(), call.func.fid());
    for page in (first..first + len).step_by(PAGE) {
        memic.write(WITHIN + u64::from(page), &[0; PAGE]).or(Err(Refused(Syndrome::Memic)))?;
    }
    call.answer(&AllocMemicOut::with(|s| s.memic_start_addr(MEMIC_BAR + u64::from(first))))
}

/// `DEALLOC_MEMIC`: frees one allocation of `ALLOC_MEMIC`.
pub(super) fn dealloc(call: &mut Call<'_, '_, '_>) -> Done {
    let input: DeallocMemicIn = call.input()?;
    let first = offset(input.memic_start_addr()).ok_or(Refused(Syndrome::Memic))?;
    let (number, row) = holding(call, first, 1).ok_or(Refused(Syndrome::Memic))?;
    let len = input.memic_size().checked_next_multiple_of(PAGE as u32);
    Syndrome::Memic.unless(row.first == first && len == Some(row.len))?;
    let index = call.own::<MemicRow>(number)?;
    call.end::<MemicRow>(index)
}

/// The caller's allocation that contains `len` bytes from `first`.
fn holding(call: &Call<'_, '_, '_>, first: u32, len: u64) -> Option<(u32, MemicRow)> {
    call.func.objects::<MemicRow>().find_map(|(index, row)| {
        let within =
            first >= row.first && u64::from(first) + len <= u64::from(row.first) + u64::from(row.len);
        (within && call.may_use(row.head.uid)).then(|| (call.func.number::<MemicRow>(index), *row))
    })
}

/// The allocation for a key over `len` bytes at `at` of BAR0, and the offset in the function's device memory.
pub(super) fn place(call: &mut Call<'_, '_, '_>, at: u64, len: u64) -> Done<(u32, u32)> {
    let first = offset(at).ok_or(Refused(Syndrome::Memic))?;
    let (number, _) = holding(call, first, len).ok_or(Refused(Syndrome::Memic))?;
    Ok((number, first))
}
