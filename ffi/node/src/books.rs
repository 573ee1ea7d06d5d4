//! The arena's books: a word for each block, at its first page.

use std::ops::Range;

/// Size classes of blocks: log2 of their pages.
pub const CLASSES: usize = 25;

/// A block's word: bit 63 used, 57..=62 class, 32..=47 owner, 0..=31 pages (used) or the next free block plus one.
#[derive(Clone, Copy)]
pub struct Word(pub u64);

const USED: u64 = 1 << 63;

impl Word {
    /// A block in use.
    pub fn used(class: usize, owner: u64, pages: u32) -> Self {
        Self(USED | (class as u64) << 57 | owner << 32 | u64::from(pages))
    }
    /// A free block, linked to `next` (the next free block plus one).
    pub fn free(class: usize, next: u32) -> Self {
        Self((class as u64) << 57 | u64::from(next))
    }
    /// True if it is in use.
    pub fn is_used(self) -> bool {
        self.0 & USED != 0
    }
    /// log2 of the pages it spans.
    pub fn class(self) -> usize {
        (self.0 >> 57) as usize & 0x3f
    }
    /// Code of its owner.
    pub fn owner(self) -> u64 {
        self.0 >> 32 & 0xffff
    }
    /// Pages in use, or the next free block plus one.
    pub fn low(self) -> u32 {
        self.0 as u32
    }
}

/// The block of at least `pages` pages (a power of two) that contains `page`, if any. `word` reads the books. That needs no lock: blocks
/// are aligned to their size and never change it.
pub fn block_of(page: u32, pages: u32, word: impl Fn(u32) -> Option<u64>) -> Option<Range<u32>> {
    // Searches from the largest class down: until the block is found, each page tried begins a block, so its word has memory.
    (pages.trailing_zeros() as usize..CLASSES).rev().find_map(|class| {
        let first = page & !((1 << class) - 1);
        (Word(word(first)?).class() == class).then(|| first..first + (1 << class))
    })
}
