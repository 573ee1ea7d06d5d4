//! The common parts of rows in object tables.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of every row of an object table.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Head {
    /// 1: allocated. 0: free.
    pub live: u32,
    /// Padding.
    pub reserved: u32,
    /// User context that owns the object; 0 is the function's own driver.
    pub uid: u16,
    /// Party of the program that created it, which owns the memory of its queues and keys.
    pub party: u16,
    /// Number of objects that refer to this one; it can't be destroyed while this is nonzero.
    pub refs: u32,
}

/// Free list of one table: unused numbers first, then freed ones in FIFO order, so that a number is not reused soon.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FreeList {
    /// Index plus one of the least recently freed row.
    pub head: u32,
    /// Index plus one of the most recently freed row.
    pub tail: u32,
    /// Rows from here on were never used or examined.
    pub fresh: u32,
    /// Rows in use.
    pub used: u32,
    /// Rows before the first unused one at the last reset of the function.
    pub base: u32,
    /// Unused rows among the last rows before `fresh`: bit *i* is row `fresh` - 1 - *i*. They are allocated next, in an
    /// unpredictable order.
    pub block: [u32; 2],
    /// Padding.
    pub reserved: u32,
}

impl FreeList {
    /// Number of rows that are shuffled: bits of `block`.
    pub const BLOCK: u32 = 64;

    /// Reads `block`.
    pub fn unused_in_block(&self) -> u64 {
        u64::from(self.block[1]) << 32 | u64::from(self.block[0])
    }

    /// Sets `block`.
    pub fn set_unused_in_block(&mut self, rows: u64) {
        self.block = [rows as u32, (rows >> 32) as u32];
    }

    /// The fraction of a table after which a function that is reset repeatedly reuses numbers: rows once touched cost memory.
    const WINDOW: u32 = 64;

    /// The list of a table of `rows` after a reset, when all rows are free: allocation continues at the same number. It
    /// restarts at 0 if the period that ends now began beyond the first 1/`WINDOW` of the table and left unused rows.
    pub fn over_reset(&self, rows: u32) -> Self {
        // At least two blocks, so that a freshly shuffled block does not repeat the latest numbers.
        let window = (rows / Self::WINDOW).max(2 * Self::BLOCK);
        let given = self.fresh - self.unused_in_block().count_ones();
        match self.base >= window && given < rows {
            true => Self::default(),
            false => Self { used: 0, base: given, ..*self },
        }
    }
}
