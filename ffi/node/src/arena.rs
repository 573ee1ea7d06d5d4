//! Memory that drivers allocate for their rings: pages of the node's file, which every runner can access.
//!
//! A block spans 2^n pages of address space, of which only the requested number have memory. Each block has one word in the books, at its
//! first page. The books can be walked word by word without gaps at any time, so if a process dies while changing them, the next one can
//! rebuild the free lists. All calls need the node's lock.

use super::{
    NodeError,
    books::{CLASSES, Word},
    file::{ARENA_PAGES, BLOCKS_AT, Mapped, PAGE, arena_at},
    locks::NodeLock,
    party_set::PARTIES,
    room, sys,
};
use std::sync::atomic::Ordering::SeqCst;

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A party: freed when the party ends.
    Party(u16),
    /// A function: freed when its last opener closes it.
    Function(u8),
}

/// Set in an owner's code if it is a function, not a party.
const OF_FUNCTION: u64 = 1 << 15;
const _: () = assert!(PARTIES <= OF_FUNCTION as usize);

impl Owner {
    fn code(self) -> u64 {
        match self {
            Self::Party(slot) => slot.into(),
            Self::Function(fid) => OF_FUNCTION | u64::from(fid),
        }
    }
}

/// Larger blocks of functions get memory only when touched: they hold pages for the device's own use, which the model never reads.
const LAZY: u32 = 64;

/// The arena, accessed under the node's lock.
pub struct Arena<'a> {
    map: &'a Mapped,
}

impl<'a> Arena<'a> {
    /// Returns the arena of `map`. If a party died during a change, rebuilds the free lists.
    pub fn new(map: &'a Mapped, _lock: &NodeLock) -> Self {
        let arena = Self { map };
        if map.header().arena_busy.load(SeqCst) != 0 {
            arena.rebuild();
        }
        arena
    }

    fn word(&self, page: u32) -> Option<Word> {
        self.map.book(page).map(|w| Word(w.load(SeqCst)))
    }

    fn set(&self, page: u32, word: Word) {
        if let Some(w) = self.map.book(page) {
            w.store(word.0, SeqCst);
        }
    }

    /// Allocates `len` bytes of zeroed memory; returns the number of the first page.
    pub fn alloc(&self, len: usize, owner: Owner, room_at: &std::path::Path) -> Result<u32, NodeError> {
        let pages = u32::try_from(len.max(1).div_ceil(PAGE)).unwrap_or(u32::MAX);
        let too_much = || room::no_room(room_at, len as u64);
        if pages > 1 << (CLASSES - 1) {
            return Err(too_much());
        }
        room::room(room_at, room::RESERVE + len as u64)?;
        let class = pages.next_power_of_two().trailing_zeros() as usize;
        let header = self.map.header();
        header.arena_busy.store(1, SeqCst);
        let head = header.arena_free[class].load(SeqCst);
        let page = match head.checked_sub(1).and_then(|page| Some((page, self.word(page)?))) {
            Some((page, word)) => {
                header.arena_free[class].store(word.low(), SeqCst);
                page
            }
            None => {
                let Some(fresh) = self.fresh(class) else {
                    header.arena_busy.store(0, SeqCst);
                    return Err(too_much());
                };
                fresh
            }
        };
        self.set(page, Word::used(class, owner.code(), pages));
        header.arena_used.fetch_add(pages.into(), SeqCst);
        header.arena_busy.store(0, SeqCst);
        let lazy = matches!(owner, Owner::Function(_)) && pages > LAZY;
        if !lazy && !self.map.back(self.at(page) as usize, pages as usize * PAGE) {
            self.free(page);
            return Err(too_much());
        }
        Ok(page)
    }

    /// Allocates a block from the range that was never used. The block is aligned to its size, so that a process maps it in one piece; the
    /// gap before it becomes smaller free blocks.
    fn fresh(&self, class: usize) -> Option<u32> {
        let header = self.map.header();
        loop {
            let fresh = header.arena_fresh.load(SeqCst);
            let next = class.min(fresh.trailing_zeros() as usize);
            let fits = u64::from(fresh) + (1 << next) <= u64::from(ARENA_PAGES);
            if !fits || !self.map.reaches_book(fresh) || !self.map.back(BLOCKS_AT + fresh as usize * 8, 8) {
                return None;
            }
            let behind = if next == class { 0 } else { header.arena_free[next].load(SeqCst) };
            self.set(fresh, Word::free(next, behind));
            header.arena_fresh.store(fresh + (1 << next), SeqCst);
            if next == class {
                return Some(fresh);
            }
            header.arena_free[next].store(fresh + 1, SeqCst);
        }
    }

    fn at(&self, page: u32) -> u64 {
        arena_at() as u64 + u64::from(page) * PAGE as u64
    }

    /// Number of pages of the block that begins at `page`, if there is one.
    pub fn pages(&self, page: u32) -> Option<u32> {
        let word =
            self.word(page).filter(|w| w.is_used() && page < self.map.header().arena_fresh.load(SeqCst))?;
        Some(word.low())
    }

    /// True if the block that begins at `page` belongs to `owner`.
    pub fn belongs(&self, page: u32, owner: Owner) -> bool {
        self.pages(page).is_some() && self.word(page).is_some_and(|w| w.owner() == owner.code())
    }

    /// Frees the block that begins at `page`, and returns its memory to the system at once if possible.
    pub fn free(&self, page: u32) {
        let Some(pages) = self.pages(page) else { return };
        // Punches a hole, which reads as zeros, as the next owner expects. If the file system does not support that, the block keeps its
        // memory and is cleared. If that fails too, the block stays with its owner, which is asked to free it again.
        let (at, len) = (self.at(page), u64::from(pages) * PAGE as u64);
        let punch = |file| sys::punch(file, at, len).or_else(|_| sys::clear(file, at, len));
        if self.map.file().and_then(punch).is_err() {
            return;
        }
        let header = self.map.header();
        let Some(class) = self.word(page).map(Word::class).filter(|c| *c < CLASSES) else { return };
        header.arena_busy.store(1, SeqCst);
        self.set(page, Word::free(class, header.arena_free[class].load(SeqCst)));
        header.arena_free[class].store(page + 1, SeqCst);
        header.arena_used.fetch_sub(pages.into(), SeqCst);
        header.arena_busy.store(0, SeqCst);
    }

    /// Frees all blocks of `owner`; returns their number.
    pub fn free_all(&self, owner: Owner) -> usize {
        let mut freed = 0;
        self.walk(|page, word| {
            if word.is_used() && word.owner() == owner.code() {
                self.free(page);
                freed += 1;
            }
        });
        freed
    }

    /// Number of blocks and of pages of `owner`.
    #[cfg(test)]
    pub fn count(&self, owner: Owner) -> (usize, u64) {
        let mut sum = (0, 0);
        self.walk(|_, word| {
            if word.is_used() && word.owner() == owner.code() {
                sum = (sum.0 + 1, sum.1 + u64::from(word.low()));
            }
        });
        sum
    }

    fn walk(&self, mut see: impl FnMut(u32, Word)) {
        let fresh = self.map.header().arena_fresh.load(SeqCst).min(ARENA_PAGES);
        let mut page = 0;
        while page < fresh {
            let Some(word) = self.word(page) else { break };
            see(page, word);
            page += 1 << word.class().min(CLASSES - 1);
        }
    }

    /// Rebuilds the free lists and the count of used pages.
    fn rebuild(&self) {
        let header = self.map.header();
        header.arena_free.iter().for_each(|head| head.store(0, SeqCst));
        let mut used = 0;
        self.walk(|page, word| {
            let class = word.class().min(CLASSES - 1);
            if word.is_used() {
                used += u64::from(word.low());
            } else {
                self.set(page, Word::free(class, header.arena_free[class].load(SeqCst)));
                header.arena_free[class].store(page + 1, SeqCst);
            }
        });
        header.arena_used.store(used, SeqCst);
        header.arena_busy.store(0, SeqCst);
    }
}
