//! Page requests as a card makes them (`pages=real`): thousands of pages during bring-up, and events in both directions later,
//! at times that depend only on the number of commands.

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

/// Pages requested before the capabilities are read and before `INIT_HCA`: by a PF, and by a VF.
const WANTED: [[u32; 2]; 2] = [[1024, 6000], [128, 2500]];
/// One of this many commands that create objects waits for pages; on one of this many that destroy objects, pages are given
/// back.
const EVERY: u32 = 8;
/// Numbers of pages that such commands wait for, in turn.
const REQUESTS: [u32; 4] = [1, 64, 10_000, 512];
/// Pages that the PF's driver is asked for when it enables a VF.
const FOR_A_VF: i32 = 64;
/// Surplus of pages beyond which a function requests no more.
const PLENTY: u32 = 20_000;
/// Number of unsuccessful reclaims before pages are given back.
const EMPTY_TAKES: u32 = 2;

/// Limits `pages` to the room in the translation table, which holds the list of pages.
fn scaled(func: &Func<'_>, pages: u32) -> i32 {
    pages.min(func.rows(Table::Mtt) / 32) as i32
}

/// The pages of [`pages::wanted`].
pub(super) fn wanted(func: &Func<'_>) -> [i32; 2] {
    WANTED[usize::from(func.fid() != 0)].map(|pages| scaled(func, pages))
}

/// The commands that create objects in such pages, and those that destroy them.
const OBJECTS: [[Opcode; 2]; 8] = [
    [Opcode::CreateMkey, Opcode::DestroyMkey],
    [Opcode::CreateCq, Opcode::DestroyCq],
    [Opcode::CreateQp, Opcode::DestroyQp],
    [Opcode::CreateSrq, Opcode::DestroySrq],
    [Opcode::CreateXrcSrq, Opcode::DestroyXrcSrq],
    [Opcode::CreateRmp, Opcode::DestroyRmp],
    [Opcode::CreateRq, Opcode::DestroyRq],
    [Opcode::CreateSq, Opcode::DestroySq],
];

/// Sends the driver an event that requests `count` pages for `function`, or offers pages back if negative. False if no event
/// queue listens for it.
pub(super) fn request(func: &mut Func<'_>, function: u16, count: i32) -> bool {
    let Some(eqn) = event::listener(func, EventType::PageRequest) else { return false };
    let event = PagesEvent::with(|s| s.function_id(function).num_pages(count as u32));
    event::push(func, eqn, Eqe::new(EventType::PageRequest, event));
    true
}

/// Pages held beyond the minimum of this function, or for another function by number.
fn surplus(func: &Func<'_>, config: &Config) -> u32 {
    let wanted: i32 = pages::wanted(func, config).iter().sum();
    func.function().pages_held.saturating_sub(wanted as u32)
}

/// True if the command of `slot` must wait for pages. Otherwise pages may be given back at the same time.
pub(super) fn puts_off(func: &mut Func<'_>, config: &Config, opcode: Opcode, slot: u32) -> bool {
    if opcode == Opcode::DestroyEq {
        // A driver in teardown is asked for more pages, and no command waits for them.
        if func.function().pages_owed == 0 {
            request(func, 0, 16);
        }
        return false;
    }
    let Some([_, destroys]) = OBJECTS.into_iter().find(|pair| pair.contains(&opcode)) else { return false };
    let makers = func.function().makers.wrapping_add(1);
    *func.function_mut(|f| &mut f.makers) = makers;
    let surplus = surplus(func, config);
    if makers % EVERY != 0 || func.function().pages_owed != 0 {
        return false;
    }
    if opcode == destroys {
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

/// Records that the driver gave `count` pages for function `id`.
pub(super) fn given(func: &mut Func<'_>, id: u16, count: u32) {
    let owed = func.function().pages_owed;
    if id == 0 && owed > 0 {
        *func.function_mut(|f| &mut f.pages_owed) = (owed - count.min(owed as u32) as i32).max(0);
    }
}

/// Records that the driver has no pages.
pub(super) fn denied(func: &mut Func<'_>, id: u16) {
    if id == 0 && func.function().pages_owed > 0 {
        *func.function_mut(|f| &mut f.pages_owed) = -1;
    }
}

/// The slots with a command that no longer waits for pages; true if the pages were given.
pub(super) fn answered(func: &mut Func<'_>) -> Option<(u32, bool)> {
    let (slots, owed) = (func.function().cmd_pending, func.function().pages_owed);
    if slots == 0 || owed > 0 {
        return None;
    }
    *func.function_mut(|f| &mut f.cmd_pending) = 0;
    *func.function_mut(|f| &mut f.pages_owed) = 0;
    Some((slots, owed == 0))
}

/// Cancels all waits for pages.
pub(super) fn forget(func: &mut Func<'_>) {
    *func.function_mut(|f| &mut f.pages_owed) = 0;
    *func.function_mut(|f| &mut f.cmd_pending) = 0;
    *func.function_mut(|f| &mut f.empty_takes) = 0;
}

/// True if a reclaim of pages after teardown yields none yet.
pub(super) fn answers_with_none(func: &mut Func<'_>) -> bool {
    let takes = func.function_mut(|f| &mut f.empty_takes);
    *takes = takes.saturating_add(1);
    *takes <= EMPTY_TAKES
}

/// Requests pages from the PF or gives them back when it enables or disables VF `id`.
pub(super) fn vf_changed(func: &mut Func<'_>, id: u16, enabled: bool) {
    request(func, id, if enabled { FOR_A_VF } else { -FOR_A_VF });
}

impl Adapter {
    /// Asks the driver of `fid` for `count` pages, or offers pages back if negative, as firmware may at any time. False if no
    /// event queue listens for such requests.
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
