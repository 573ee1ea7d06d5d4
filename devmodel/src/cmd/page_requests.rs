//! Requests for pages as a card makes them (`pages=real`): by thousands before it runs, and by events while it does, in both
//! directions, at moments that follow from the number of commands alone.

use super::pages;
use crate::{
    Adapter,
    config::Config,
    host::Host,
    mlx5::event,
    region::{Func, Table},
};
use hwspec::{
    cmd::Opcode,
    eqe::{Eqe, EventType, PagesEvent},
};

/// Pages asked for before the capabilities are read and before `INIT_HCA`: of a PF, and of a VF.
const WANTED: [[u32; 2]; 2] = [[1024, 6000], [128, 2500]];
/// Every so many commands that make objects one waits for pages; every so many that end some, pages are given back.
const EVERY: u32 = 8;
/// How many it waits for, in turn.
const REQUESTS: [u32; 4] = [1, 64, 10_000, 512];
/// Pages for a VF, asked of its PF when that enables it.
const FOR_A_VF: i32 = 64;
/// Pages beyond those wanted with which a function asks for no more.
const PLENTY: u32 = 20_000;
/// How often pages are asked back in vain before they are given back.
const EMPTY_TAKES: u32 = 2;

/// The pages that a table of translations has room for: their list lies there.
fn scaled(func: &Func<'_>, pages: u32) -> i32 {
    pages.min(func.rows(Table::Mtt) / 32) as i32
}

/// See [`pages::wanted`].
pub(super) fn wanted(func: &Func<'_>) -> [i32; 2] {
    WANTED[usize::from(func.fid() != 0)].map(|pages| scaled(func, pages))
}

fn makes(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::CreateMkey
            | Opcode::CreateCq
            | Opcode::CreateQp
            | Opcode::CreateSrq
            | Opcode::CreateXrcSrq
            | Opcode::CreateRmp
            | Opcode::CreateRq
            | Opcode::CreateSq
    )
}

fn ends(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::DestroyMkey
            | Opcode::DestroyCq
            | Opcode::DestroyQp
            | Opcode::DestroySrq
            | Opcode::DestroyXrcSrq
            | Opcode::DestroyRmp
            | Opcode::DestroyRq
            | Opcode::DestroySq
    )
}

/// Asks the driver by an event for `count` pages for `function`, or to take so many back. False: it has no event queue for
/// that.
pub(super) fn request(func: &mut Func<'_>, function: u16, count: i32) -> bool {
    let Some(eqn) = event::listener(func, EventType::PageRequest) else { return false };
    let event = PagesEvent::with(|s| s.function_id(function).num_pages(count as u32));
    event::push(func, eqn, Eqe::new(EventType::PageRequest, event));
    true
}

/// Pages held for this function beyond those it does not do without, or for another by its number.
fn surplus(func: &Func<'_>, config: &Config) -> u32 {
    let wanted: i32 = pages::wanted(func, config).iter().sum();
    func.function().pages_held.saturating_sub(wanted as u32)
}

/// True if the command of `slot` waits until pages were given. Otherwise pages may be given back beside it.
pub(super) fn puts_off(func: &mut Func<'_>, config: &Config, opcode: Opcode, slot: u32) -> bool {
    if opcode == Opcode::DestroyEq {
        // A driver that takes everything down is asked for more, and nobody waits for the answer.
        if func.function().pages_owed == 0 {
            request(func, 0, 16);
        }
        return false;
    }
    if !makes(opcode) && !ends(opcode) {
        return false;
    }
    let makers = func.function().makers.wrapping_add(1);
    *func.function_mut(|f| &mut f.makers) = makers;
    let surplus = surplus(func, config);
    if makers % EVERY != 0 || func.function().pages_owed != 0 {
        return false;
    }
    if ends(opcode) {
        if surplus > 0 {
            request(func, 0, -(surplus as i32));
        }
        return false;
    }
    let pages = scaled(func, REQUESTS[(makers / EVERY) as usize % REQUESTS.len()]);
    if surplus > PLENTY || !request(func, 0, pages) {
        return false;
    }
    *func.function_mut(|f| &mut f.pages_owed) = pages;
    *func.function_mut(|f| &mut f.cmd_pending) |= 1 << slot;
    true
}

/// `count` pages were given for function `id`.
pub(super) fn given(func: &mut Func<'_>, id: u16, count: u32) {
    let owed = func.function().pages_owed;
    if id == 0 && owed > 0 {
        *func.function_mut(|f| &mut f.pages_owed) = (owed - count.min(owed as u32) as i32).max(0);
    }
}

/// The driver has no pages.
pub(super) fn denied(func: &mut Func<'_>, id: u16) {
    if id == 0 && func.function().pages_owed > 0 {
        *func.function_mut(|f| &mut f.pages_owed) = -1;
    }
}

/// The slots whose command need not wait for pages any more, and whether there are pages for them.
pub(super) fn answered(func: &mut Func<'_>) -> Option<(u32, bool)> {
    let (slots, owed) = (func.function().cmd_pending, func.function().pages_owed);
    if slots == 0 || owed > 0 {
        return None;
    }
    *func.function_mut(|f| &mut f.cmd_pending) = 0;
    *func.function_mut(|f| &mut f.pages_owed) = 0;
    Some((slots, owed == 0))
}

/// Nobody waits for pages any more.
pub(super) fn forget(func: &mut Func<'_>) {
    *func.function_mut(|f| &mut f.pages_owed) = 0;
    *func.function_mut(|f| &mut f.cmd_pending) = 0;
    *func.function_mut(|f| &mut f.empty_takes) = 0;
}

/// True if pages that are asked back after the function was taken down are not there yet.
pub(super) fn answers_with_none(func: &mut Func<'_>) -> bool {
    let takes = func.function_mut(|f| &mut f.empty_takes);
    *takes = takes.saturating_add(1);
    *takes <= EMPTY_TAKES
}

/// The PF enabled or disabled VF `id`: its pages are the PF's to give.
pub(super) fn vf_changed(func: &mut Func<'_>, id: u16, enabled: bool) {
    request(func, id, if enabled { FOR_A_VF } else { -FOR_A_VF });
}

impl Adapter {
    /// Asks the driver of `fid` for `count` pages, or to take so many back, as firmware may at any time. False: it listens to no
    /// such request.
    pub fn ask_pages(&self, host: &mut dyn Host, fid: u8, count: i32) -> bool {
        if !self.is_there(fid) {
            return false;
        }
        let mut func = Func::lock(self.region(), fid, host);
        let asked = request(&mut func, 0, count);
        func.commit(host);
        asked
    }
}
