//! BlueFlame: a whole work request is written into the doorbell page, so that the device need not fetch it.
//!
//! A doorbell page has registers of two buffers, used in turn. BlueFlame pays only where the processor combines writes
//! to a buffer, so there are registers only where the transport has write-combining pages ([`Transport::combining`]). A
//! register belongs to one queue pair for its lifetime, so the lock of the send queue keeps two threads from writing
//! into one buffer. Further queue pairs ring plain doorbells in the opener's own page.
//!
//! [`Transport::combining`]: crate::transport::Transport::combining

use crate::{
    dma::{BlockRing, order::around_combined},
    error::Error,
    function::Function,
    transport::Bar,
};
use hwspec::{
    cmd::{CmdIn, Opcode, resource::*},
    doorbell::{BF_BUF_SIZE, BF_OFFSET, BF_REG_SIZE, SqDoorbell},
    wqe::{DS_PER_BB, WQE_BB, WQE_DS},
};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Registers used per page: those that Linux gives to programs. Linux keeps the others for itself.
const PER_PAGE: u32 = 2;
/// Maximum number of pages per opener. libmlx5 takes as many registers when it opens a device.
const PAGES: usize = 8;

/// A page of registers.
struct Page {
    uar: u32,
    bar: Bar,
    /// Bit mask of the registers that queue pairs hold.
    used: AtomicU32,
}

/// The pages of one opener.
#[derive(Default)]
pub struct Registers(Mutex<Pool>);

#[derive(Default)]
struct Pool {
    pages: Vec<Arc<Page>>,
    /// No more pages can be allocated.
    exhausted: bool,
}

impl Registers {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a register for a queue pair of the opener with user context `uid`. `None` if there are no more, or never
    /// were.
    pub fn take(&self, function: &Function, uid: u16) -> Option<Box<Register>> {
        let mut pool = self.pool();
        if let Some(register) = pool.pages.iter().find_map(Register::take) {
            return Some(register);
        }
        if pool.exhausted {
            return None;
        }
        let page = page(function, uid).inspect_err(|error| tracing::debug!(%error, "no page for BlueFlame"));
        let page = page.ok().flatten();
        pool.exhausted = page.is_none() || pool.pages.len() + 1 == PAGES;
        pool.pages.extend(page);
        pool.pages.last().and_then(Register::take)
    }

    /// Frees all pages. No queue pair may still hold a register.
    pub fn give_back(&self, function: &Function, uid: u16) -> Result<(), Error> {
        let pages = std::mem::take(&mut *self.pool()).pages;
        let uars: Vec<u32> = pages.into_iter().map(|page| page.uar).collect();
        let free = |uar| function.destroy_object(Opcode::DeallocUar, uid, uar);
        uars.into_iter().map(free).fold(Ok(()), Result::and)
    }
}

/// Allocates a page. `None` if the transport has no write-combining pages.
fn page(function: &Function, uid: u16) -> Result<Option<Arc<Page>>, Error> {
    let Some(combining) = function.transport.combining() else { return Ok(None) };
    let out: AllocUarOut = function.call(Opcode::AllocUar, uid, &CmdIn::zeroed())?;
    let uar = out.uar();
    match combining.page(uar) {
        Ok(bar) => Ok(Some(Arc::new(Page { uar, bar, used: AtomicU32::new(0) }))),
        Err(error) => {
            let freed = function.destroy_object(Opcode::DeallocUar, uid, uar);
            freed.and(Err(Error::io("cannot map a doorbell page that combines writes")(error)))
        }
    }
}

/// A register, released on drop.
pub struct Register {
    page: Arc<Page>,
    index: u32,
    /// Offset in the page of the buffer for the next doorbell.
    buffer: u32,
}

impl Register {
    fn take(page: &Arc<Page>) -> Option<Box<Self>> {
        let next = |used: u32| Some(used | 1 << used.trailing_ones()).filter(|used| used >> PER_PAGE == 0);
        let index = page.used.fetch_update(Acquire, Relaxed, next).ok()?.trailing_ones();
        let buffer = BF_OFFSET as u32 + index * BF_REG_SIZE as u32;
        Some(Box::new(Self { page: page.clone(), index, buffer }))
    }

    /// Its page, to be set as the doorbell page of the queue pair.
    pub fn uar(&self) -> u32 {
        self.page.uar
    }

    /// Rings for the work requests in `ring` from basic block `first` to the one with doorbell `bell`. The doorbell
    /// record must already be written. A single work request that has more than its control segment and fits into the
    /// buffer is written to it; for anything else only the doorbell is rung, and the device fetches the requests.
    #[inline(never)]
    pub fn ring(&mut self, ring: &BlockRing, first: u32, bell: u64) {
        let last = SqDoorbell::from_bytes(bell.to_be_bytes());
        let (alone, segments) = (last.wqe_idx() == first as u16, usize::from(last.ds()));
        around_combined();
        if alone && (2..=BF_BUF_SIZE / WQE_DS).contains(&segments) {
            for block in 0..segments.div_ceil(DS_PER_BB) as u32 {
                let to = self.buffer + block * WQE_BB as u32;
                self.page.bar.copy_block(to, ring.block(first.wrapping_add(block)));
            }
        } else {
            self.page.bar.doorbell(self.buffer, bell);
        }
        around_combined();
        self.buffer ^= BF_BUF_SIZE as u32;
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.page.used.fetch_and(!(1 << self.index), Release);
    }
}
