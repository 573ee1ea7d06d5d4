//! The area shared by all openers of a function: its state, and the resources that each opener holds.
//!
//! An opener claims a slot, a vector or a lock by writing its id into the respective word. If the word holds the
//! id of a dead opener, another may claim it.

mod log;
mod xrc;

pub use log::{Found, LOGGED, Logged, QueuePlace, Which};
pub use xrc::{FileId, XrcObject};

use crate::{dma::DmaMem, error::Error, transport::Transport};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{
            AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

/// Bytes used of the shared area.
pub const SHARED_LEN: usize = 0x1_0000;
/// Maximum number of command slots.
pub const SLOTS: usize = 32;
/// Maximum number of interrupt vectors.
pub const VECTORS: usize = 256;
/// Maximum number of openers per function.
pub const OPENERS: usize = 1024;
/// Maximum number of page blocks given to the chip.
pub const PAGE_BLOCKS: usize = 2048;
/// Words per page block: IOVA (two words), function and number of pages, pages given to the chip and held by it.
const BLOCK_WORDS: usize = 4;

// Word numbers.
const LOCK: usize = 0;
const STATE: usize = 1;
const CMD_LOW: usize = 2;
const CMD_HIGH: usize = 3;
const TOKEN: usize = 4;
const MANAGER: usize = 5;
const CMD_LEN: usize = 6;
const TURN: usize = 7;
const MAC_LOW: usize = 8;
const MAC_HIGH: usize = 9;
const LOST: usize = 10;
const SLOT: usize = 64;
const VECTOR: usize = SLOT + SLOTS;
const OPENER: usize = VECTOR + VECTORS;
const BLOCK: usize = OPENER + OPENERS;
const _: () = assert!((BLOCK + PAGE_BLOCKS * BLOCK_WORDS) * 4 <= SHARED_LEN);

/// State of the function, written under the function lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionState {
    /// Uninitialized, or torn down by the last opener.
    Down,
    /// Being brought up or torn down by the holder of the function lock.
    InChange,
    /// Up: openers may attach.
    Up,
}

/// The shared area.
#[derive(Clone)]
pub struct Shared {
    mem: Arc<DmaMem>,
    transport: Arc<dyn Transport>,
    me: u32,
}

impl Shared {
    /// Maps the area.
    pub fn open(transport: &Arc<dyn Transport>) -> Result<Self, Error> {
        let mem = Arc::new(DmaMem::shared(transport, SHARED_LEN)?);
        Ok(Self { mem, transport: transport.clone(), me: transport.opener() })
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        &self.mem.words32()[number]
    }

    /// Claims word `number` if it is free or its holder is dead.
    fn try_claim(&self, number: usize) -> bool {
        let word = self.word(number);
        let held = word.load(Relaxed);
        let free = held == 0 || held != self.me && !self.transport.alive(held);
        free && word.compare_exchange(held, self.me, AcqRel, Relaxed).is_ok()
    }

    fn release(&self, number: usize) {
        // Only if it is still ours: an opener that considered us dead may hold it now.
        let _ = self.word(number).compare_exchange(self.me, 0, Release, Relaxed);
    }

    /// Takes the lock that protects the function's state, from a dead holder if necessary.
    pub fn lock(&self, timeout: Duration) -> Result<FunctionLock<'_>, Error> {
        let begin = Instant::now();
        while !self.try_claim(LOCK) {
            if begin.elapsed() > timeout {
                let what = format!("opener {} holding the function's lock", self.word(LOCK).load(Relaxed));
                return Err(Error::Timeout { what, waited: timeout });
            }
            self.transport.idle();
            self.transport.nap(Duration::from_micros(200));
        }
        Ok(FunctionLock(self))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<FunctionLock<'_>> {
        self.try_claim(LOCK).then_some(FunctionLock(self))
    }

    /// State of the function.
    pub fn state(&self) -> FunctionState {
        match self.word(STATE).load(Acquire) {
            0 => FunctionState::Down,
            2 => FunctionState::Up,
            _ => FunctionState::InChange,
        }
    }

    /// IOVA and length of the command queue's memory, 0 if there is none.
    pub fn command_memory(&self) -> (u64, usize) {
        let iova =
            u64::from(self.word(CMD_HIGH).load(Acquire)) << 32 | u64::from(self.word(CMD_LOW).load(Acquire));
        (iova, self.word(CMD_LEN).load(Acquire) as usize)
    }

    /// Records that the device is lost, until it is brought up again.
    pub fn give_up(&self) {
        self.word(LOST).store(1, Relaxed);
    }

    /// True if an opener has marked the device as lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.word(LOST).load(Relaxed) != 0
    }

    /// Returns a command token: never 0, and distinct among concurrent commands.
    pub fn token(&self) -> u8 {
        (self.word(TOKEN).fetch_add(1, Relaxed) % 255) as u8 + 1
    }

    /// Claims a command slot. Returns true on success.
    pub fn claim_slot(&self, slot: usize) -> bool {
        self.try_claim(SLOT + slot)
    }

    /// Releases a command slot.
    pub fn release_slot(&self, slot: usize) {
        self.release(SLOT + slot);
    }

    /// Claims a free interrupt vector in `all`.
    pub fn claim_vector(&self, all: Range<u16>) -> Option<u16> {
        (all.start..all.end.min(VECTORS as u16)).find(|v| self.try_claim(VECTOR + usize::from(*v)))
    }

    /// Picks a vector in `all`, in turn, to share with other openers when all are claimed.
    pub fn common_vector(&self, all: Range<u16>) -> Option<u16> {
        let count = all.len() as u32;
        (count != 0).then(|| all.start + (self.word(TURN).fetch_add(1, Relaxed) % count) as u16)
    }

    /// Releases a vector that we claimed.
    pub fn release_vector(&self, vector: u16) {
        self.release(VECTOR + usize::from(vector));
    }

    /// Claims the role of page supplier. There is only one at a time; otherwise pages would be given twice.
    pub fn claim_page_manager(&self) -> bool {
        self.try_claim(MANAGER)
    }

    /// Releases the role claimed by [`Shared::claim_page_manager`].
    pub fn release_page_manager(&self) {
        self.release(MANAGER);
    }

    /// Reads page block `index`, `None` if the entry is free.
    pub fn page_block(&self, index: usize) -> Option<PageBlock> {
        let at = BLOCK + index * BLOCK_WORDS;
        let size = self.word(at + 2).load(Acquire);
        let iova = u64::from(self.word(at + 1).load(Relaxed)) << 32 | u64::from(self.word(at).load(Relaxed));
        let counts = self.word(at + 3).load(Relaxed);
        (size != 0).then_some(PageBlock {
            iova,
            pages: size & 0xffff,
            function: (size >> 16) as u16,
            given: counts >> 16,
            held: counts & 0xffff,
        })
    }

    /// Writes page block `index`; `None` frees the entry.
    pub fn set_page_block(&self, index: usize, block: Option<PageBlock>) {
        let at = BLOCK + index * BLOCK_WORDS;
        let Some(block) = block else { return self.word(at + 2).store(0, Release) };
        self.word(at).store(block.iova as u32, Relaxed);
        self.word(at + 1).store((block.iova >> 32) as u32, Relaxed);
        self.word(at + 3).store(block.given << 16 | block.held, Relaxed);
        self.word(at + 2).store(block.pages | u32::from(block.function) << 16, Release);
    }
}

/// A contiguous block of pages for the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBlock {
    /// Address of the first page.
    pub iova: u64,
    /// Number of pages.
    pub pages: u32,
    /// The function that they are for (0: this one).
    pub function: u16,
    /// Number of pages given to the chip, from the first on.
    pub given: u32,
    /// Number of those that the chip still holds.
    pub held: u32,
}

/// Exclusive right to change the function's state.
pub struct FunctionLock<'a>(&'a Shared);

impl FunctionLock<'_> {
    /// Writes the state.
    pub fn set_state(&self, state: FunctionState) {
        let raw = match state {
            FunctionState::Down => 0,
            FunctionState::InChange => 1,
            FunctionState::Up => 2,
        };
        self.0.word(STATE).store(raw, Release);
    }

    /// Records the location of the command queue's memory.
    pub fn set_command_memory(&self, iova: u64, len: usize) {
        self.0.word(CMD_LEN).store(len as u32, Release);
        self.0.word(CMD_LOW).store(iova as u32, Release);
        self.0.word(CMD_HIGH).store((iova >> 32) as u32, Release);
    }

    /// The MAC of a function that was assigned none: the choice of an earlier opener, or the result of `draw`.
    pub fn own_mac(&self, draw: impl FnOnce() -> [u8; 6]) -> [u8; 6] {
        let (low, high) = (self.0.word(MAC_LOW).load(Acquire), self.0.word(MAC_HIGH).load(Acquire));
        if high == 0 {
            let mac = draw();
            let [a, b, c, d, e, f] = mac;
            self.0.word(MAC_LOW).store(u32::from_be_bytes([c, d, e, f]), Release);
            // Never zero: the address is a locally administered one.
            self.0.word(MAC_HIGH).store(u32::from_be_bytes([0, 0, a, b]), Release);
            return mac;
        }
        let ([_, _, a, b], [c, d, e, f]) = (high.to_be_bytes(), low.to_be_bytes());
        [a, b, c, d, e, f]
    }

    /// Frees all command slots and clears the mark of a lost device, for a new command queue of a responding device.
    pub fn clear_slots(&self) {
        self.0.word(LOST).store(0, Relaxed);
        (0..SLOTS).for_each(|slot| self.0.word(SLOT + slot).store(0, Release));
    }

    /// Adds us to the list of openers, and removes dead ones.
    pub fn add_opener(&self) -> Result<(), Error> {
        match (0..OPENERS).any(|at| self.0.try_claim(OPENER + at)) {
            true => Ok(()),
            false => {
                Err(Error::busy(format!("{OPENERS} openers of one function at most, and all are there")))
            }
        }
    }

    /// Removes us once from the list, and returns whether another opener is alive. An opener that opened the
    /// function twice is listed twice.
    pub fn remove_opener(&self) -> bool {
        let mut struck = false;
        let mut others = false;
        for at in 0..OPENERS {
            let word = self.0.word(OPENER + at);
            match word.load(Relaxed) {
                0 => {}
                id if id == self.0.me && !struck => {
                    word.store(0, Release);
                    struck = true;
                }
                id if id == self.0.me || self.0.transport.alive(id) => others = true,
                _ => word.store(0, Release),
            }
        }
        others
    }
}

impl Drop for FunctionLock<'_> {
    fn drop(&mut self) {
        self.0.release(LOCK);
    }
}
