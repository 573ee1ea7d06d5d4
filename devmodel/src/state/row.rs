//! The common parts of the rows of object tables.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of every row of an object table.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Head {
    /// 1: allocated. 0: free.
    pub live: u32,
    /// Padding.
    pub reserved: u32,
    /// User context the object belongs to; 0 is the function's own driver.
    pub uid: u16,
    /// Party whose program created it and whose memory its queues and keys name.
    pub party: u16,
    /// Objects that refer to this one; it can't be destroyed while there are any.
    pub refs: u32,
}

/// Free list of one table: numbers never used, and behind them those freed, first in, first out, so that a number is not used
/// again at once.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FreeList {
    /// Index plus one of the row freed longest ago.
    pub head: u32,
    /// Index plus one of the row freed last.
    pub tail: u32,
    /// Rows from here on were never used, nor looked at.
    pub fresh: u32,
    /// Rows in use.
    pub used: u32,
    /// Rows before those never used after the last reset of the function.
    pub base: u32,
    /// Of the last rows before `fresh`, those that were never used either: bit *i* is row `fresh` - 1 - *i*. They come next,
    /// in an order that nobody outside can foresee.
    pub block: [u32; 2],
    /// Padding.
    pub reserved: u32,
}

impl FreeList {
    /// Rows that are mixed: bits of `block`.
    pub const BLOCK: u32 = 64;

    /// See `block`.
    pub fn unused_in_block(&self) -> u64 {
        u64::from(self.block[1]) << 32 | u64::from(self.block[0])
    }

    /// See `block`.
    pub fn set_unused_in_block(&mut self, rows: u64) {
        self.block = [rows as u32, (rows >> 32) as u32];
    }

    /// Numbers that are used before a function that is reset again and again begins anew: rows once touched cost memory.
    const WINDOW: u32 = 64;

    /// The list of a table of `rows` behind a reset, when all rows are free: numbers go on where they were. When the time
    /// that ends now left a part of the table before it, they begin anew there.
    pub fn over_reset(&self, rows: u32) -> Self {
        // Two blocks at least: numbers of the one that is mixed anew were not among the last.
        let window = (rows / Self::WINDOW).max(2 * Self::BLOCK);
        let given = self.fresh - self.unused_in_block().count_ones();
        match self.base >= window && given < rows {
            true => Self::default(),
            false => Self { used: 0, base: given, ..*self },
        }
    }
}
