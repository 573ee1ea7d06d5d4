//! Page supply: memory the driver gives to the device and gets back (PRM: pages management).
//!
//! The model keeps its state elsewhere and only holds the pages, but it asks for them, refuses to start without them and
//! gives back exactly what it was given.

use super::{
    call::Call,
    refusal::{Done, Syndrome},
};
use crate::{
    region::{Func, MttRange},
    state::HcaState,
};
use hwspec::cmd::adapter::{ManagePagesIn, ManagePagesOut, QueryPagesIn, QueryPagesOut};

/// Pages asked for before the capabilities are read, and before `INIT_HCA`.
const WANTED: [i32; 2] = [16, 48];
/// Entries of the first list of pages.
const LIST: u32 = 128;
/// Pages a function holds at most.
const MOST: u32 = 1 << 20;

/// `op_mod` of `QUERY_PAGES`.
pub(super) const BOOT: u16 = 1;
pub(super) const INIT: u16 = 2;
pub(super) const REGULAR: u16 = 3;

/// `op_mod` of `MANAGE_PAGES`.
pub(super) const CANT_GIVE: u16 = 0;
pub(super) const GIVE: u16 = 1;
pub(super) const TAKE: u16 = 2;

/// Begins to ask.
pub(super) fn ask(func: &mut Func<'_>) {
    let held = func.function().pages_held as i32;
    let boot = (WANTED[0] - held).max(0);
    let init = (WANTED[1] - (held - WANTED[0]).max(0)).max(0);
    *func.function_mut(|f| &mut f.pages_wanted) = [boot, init];
}

fn list(func: &Func<'_>) -> MttRange {
    let [first, len] = func.function().page_list;
    MttRange { first, len }
}

/// Forgets all pages.
pub(super) fn forget(func: &mut Func<'_>) {
    func.free_mtt(list(func));
    *func.function_mut(|f| &mut f.page_list) = [0; 2];
    *func.function_mut(|f| &mut f.pages_held) = 0;
    *func.function_mut(|f| &mut f.pages_wanted) = [0; 2];
}

pub(super) fn query(call: &mut Call<'_, '_, '_>) -> Done {
    let input: QueryPagesIn = call.input()?;
    Syndrome::FunctionId.unless(input.function_id() == 0)?;
    let wanted = call.func.function().pages_wanted;
    let num_pages = match call.op_mod {
        BOOT => wanted[0],
        INIT => wanted[1],
        REGULAR => 0,
        _ => return Syndrome::OpMod.refuse(),
    };
    let mut out = QueryPagesOut::zeroed();
    out.set().num_pages(num_pages as u32);
    call.answer(&out)
}

pub(super) fn manage(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ManagePagesIn = call.input()?;
    Syndrome::FunctionId.unless(input.function_id() == 0)?;
    match call.op_mod {
        CANT_GIVE => call.answer(&ManagePagesOut::zeroed()),
        GIVE => give(call, input.input_num_entries()),
        TAKE => take(call, input.input_num_entries()),
        _ => Syndrome::OpMod.refuse(),
    }
}

fn give(call: &mut Call<'_, '_, '_>, count: u32) -> Done {
    let pages: Vec<u64> = call.list(ManagePagesIn::SIZE, count as usize)?.collect();
    Syndrome::PageAddress.unless(pages.iter().all(|p| p & 0xfff == 0))?;
    let held = call.func.function().pages_held;
    Syndrome::TableFull.unless(held + count <= MOST)?;
    let mut range = list(call.func);
    if held + count > range.len {
        let len = (held + count).next_power_of_two().max(LIST);
        let larger = call.alloc_mtt(len)?;
        for i in 0..held {
            let page = call.func.mtt(range.first + i);
            call.func.set_mtt(larger.first + i, page);
        }
        call.func.free_mtt(range);
        range = larger;
        *call.func.function_mut(|f| &mut f.page_list) = [range.first, range.len];
    }
    for (i, page) in pages.iter().enumerate() {
        call.func.set_mtt(range.first + held + i as u32, *page);
    }
    *call.func.function_mut(|f| &mut f.pages_held) = held + count;
    let wanted = call.func.function_mut(|f| &mut f.pages_wanted);
    let boot = wanted[0].min(count as i32);
    wanted[0] -= boot;
    wanted[1] = (wanted[1] - (count as i32 - boot)).max(0);
    call.answer(&ManagePagesOut::zeroed())
}

fn take(call: &mut Call<'_, '_, '_>, count: u32) -> Done {
    let held = call.func.function().pages_held;
    // While it runs the device keeps what it asked for.
    let kept =
        if call.func.function().hca_state == HcaState::Running.raw() { WANTED[0] + WANTED[1] } else { 0 }
            as u32;
    let n = count.min(held.saturating_sub(kept));
    let range = list(call.func);
    let mut out = ManagePagesOut::zeroed();
    out.set().output_num_entries(n);
    let mut bytes = out.as_bytes().to_vec();
    for i in 0..n {
        bytes.extend_from_slice(&call.func.mtt(range.first + held - 1 - i).to_be_bytes());
    }
    *call.func.function_mut(|f| &mut f.pages_held) = held - n;
    call.answer_bytes(&bytes)
}
