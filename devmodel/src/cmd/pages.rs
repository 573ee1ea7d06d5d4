//! Page supply: memory that the driver gives to the device and takes back (PRM: pages management).
//!
//! The model does not store anything in these pages, but it requests them, refuses to start without them and returns
//! exactly those it was given. `page_requests` has the requests in the manner of a card.

use super::{
    call::Call,
    page_requests,
    refusal::{Done, Syndrome},
};
use crate::{
    config::Config,
    region::{Func, MttRange},
    state::HcaState,
};
use hwspec::cmd::adapter::*;

/// Pages requested before the capabilities are read, and before `INIT_HCA`.
const WANTED: [i32; 2] = [16, 48];
/// Size of the first page list.
const LIST: u32 = 128;
/// Maximum number of pages that a function holds.
const MOST: u32 = 1 << 20;

/// `op_mod` of `QUERY_PAGES`.
pub(super) const BOOT: u16 = 1;
pub(super) const INIT: u16 = 2;
pub(super) const REGULAR: u16 = 3;
/// Low bits of a list entry: the function that the page is for, as numbered by the driver.
const FOR: u64 = 0xfff;

/// Number of pages that the function requires, at boot and at init.
pub(super) fn wanted(func: &Func<'_>, config: &Config) -> [i32; 2] {
    if config.strict.pages { page_requests::wanted(func) } else { WANTED }
}

/// Starts requesting pages.
pub(super) fn ask(func: &mut Func<'_>, config: &Config) {
    let (held, wanted) = (func.function().pages_held as i32, wanted(func, config));
    let boot = (wanted[0] - held).max(0);
    let init = (wanted[1] - (held - wanted[0]).max(0)).max(0);
    *func.function_mut(|f| &mut f.pages_wanted) = [boot, init];
}

fn list(func: &Func<'_>) -> MttRange {
    let [first, len] = func.function().page_list;
    MttRange { first, len }
}

/// Forgets all held pages.
pub(super) fn forget(func: &mut Func<'_>) {
    func.free_mtt(list(func));
    *func.function_mut(|f| &mut f.page_list) = [0; 2];
    *func.function_mut(|f| &mut f.pages_held) = 0;
    *func.function_mut(|f| &mut f.pages_wanted) = [0; 2];
    page_requests::forget(func);
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
    call.answer(&QueryPagesOut::with(|s| s.num_pages(num_pages as u32)))
}

pub(super) fn manage(call: &mut Call<'_, '_, '_>) -> Done {
    let input: ManagePagesIn = call.input()?;
    let id = input.function_id();
    let manages = call.step.config.strict.pages && call.func.fid() == 0 && !input.embedded_cpu_function();
    let others = manages && id < u16::from(call.func.region().functions());
    Syndrome::FunctionId.unless(id == 0 || others)?;
    match call.op_mod {
        CANT_GIVE => {
            page_requests::denied(call.func, id);
            call.answer(&ManagePagesOut::zeroed())
        }
        GIVE => give(call, id, input.input_num_entries()),
        TAKE => take(call, id, input.input_num_entries()),
        _ => Syndrome::OpMod.refuse(),
    }
}

fn give(call: &mut Call<'_, '_, '_>, id: u16, count: u32) -> Done {
    let pages: Vec<u64> = call.list(ManagePagesIn::SIZE, count as usize)?.collect();
    Syndrome::PageAddress.unless(pages.iter().all(|p| p & 0xfff == 0))?;
    let held = call.func.function().pages_held;
    Syndrome::TableFull.unless(held.saturating_add(count) <= MOST)?;
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
        call.func.set_mtt(range.first + held + i as u32, *page | u64::from(id));
    }
    *call.func.function_mut(|f| &mut f.pages_held) = held + count;
    page_requests::given(call.func, id, count);
    let wanted = call.func.function_mut(|f| &mut f.pages_wanted);
    let boot = wanted[0].min(count as i32);
    wanted[0] -= boot;
    wanted[1] = (wanted[1] - (count as i32 - boot)).max(0);
    call.answer(&ManagePagesOut::zeroed())
}

fn take(call: &mut Call<'_, '_, '_>, id: u16, count: u32) -> Done {
    let held = call.func.function().pages_held;
    let range = list(call.func);
    let entries: Vec<u64> = (0..held).map(|i| call.func.mtt(range.first + i)).collect();
    let is_its = |entry: &u64| entry & FOR == u64::from(id);
    // A running device keeps the pages that it requested.
    let running = call.func.function().hca_state == HcaState::Running.raw();
    let kept = match id {
        0 if running => wanted(call.func, call.step.config).iter().sum::<i32>() as usize,
        _ => 0,
    };
    let its = entries.iter().filter(|entry| is_its(entry)).count();
    let mut n = (count as usize).min(its.saturating_sub(kept));
    if call.step.config.strict.pages && !running && page_requests::answers_with_none(call.func) {
        n = 0;
    }
    let (mut given, mut left) = (Vec::with_capacity(n), Vec::with_capacity(entries.len()));
    for entry in entries.iter().rev() {
        if is_its(entry) && given.len() < n {
            given.push(entry & !FOR);
        } else {
            left.push(*entry);
        }
    }
    left.reverse();
    if entries.get(..left.len()) != Some(&left[..]) {
        // A rollback reads the old list, so it is left unchanged.
        let another = call.alloc_mtt(range.len)?;
        left.iter().zip(another.first..).for_each(|(entry, at)| call.func.set_mtt(at, *entry));
        call.func.free_mtt(range);
        *call.func.function_mut(|f| &mut f.page_list) = [another.first, another.len];
    }
    *call.func.function_mut(|f| &mut f.pages_held) = left.len() as u32;
    let out = ManagePagesOut::with(|s| s.output_num_entries(n as u32));
    call.answer_list(&out, given.into_iter().map(u64::to_be_bytes))
}
