//! Memory within the adapter: device memory, and the null address range.
//!
//! Bus addresses from [`WITHIN`] on belong to no host: no bus has that many bits. Keys of device memory translate to them, and
//! so does the null key. The memory is the function's own, and payload in it is sent by value.

use super::{Region, Table, layout::MEMIC_PAGES};
use crate::host::{Abort, Iova};

pub use super::layout::PAGE;

/// Bytes of a function's device memory.
pub const SIZE: u32 = (MEMIC_PAGES * PAGE) as u32;
/// First address of device memory.
pub const WITHIN: Iova = 0xfffe << 48;
/// First address of the null range: writes are discarded, reads return zeros.
pub const NOTHING: Iova = 0xffff << 48;

/// True if a bus address is the adapter's own.
#[inline(always)]
pub const fn is_within(at: Iova) -> bool {
    at >= WITHIN
}

/// Device memory of a function. Like host memory on a bus, it is accessed without the function's lock.
#[derive(Clone, Copy)]
pub struct Memic<'r> {
    region: &'r Region,
    fid: u8,
}

impl<'r> Memic<'r> {
    /// Device memory of function `fid`.
    pub fn of(region: &'r Region, fid: u8) -> Self {
        Self { region, fid }
    }

    /// Calls `each` with the parts of pages that make up `len` bytes at `at`, each with its offset in the whole. Returns false
    /// if they are not all within device memory.
    fn parts(self, at: Iova, len: usize, mut each: impl FnMut(*mut u8, usize, usize)) -> bool {
        let Some(first) = at.checked_sub(WITHIN).filter(|first| *first < u64::from(SIZE)) else {
            return false;
        };
        let first = first as usize;
        if len > SIZE as usize - first {
            return false;
        }
        let mut done = 0;
        while done < len {
            let (page, within) = ((first + done) / PAGE, (first + done) % PAGE);
            let here = (len - done).min(PAGE - within);
            let row = self.region.row_pointer(self.region.block(self.fid), Table::MemicPage, page, PAGE);
            // SAFETY: within the row.
            each(unsafe { row.add(within) }, done, here);
            done += here;
        }
        true
    }

    /// Reads `into.len()` bytes at `at`.
    #[cold]
    pub fn read(self, at: Iova, into: &mut [u8]) -> Result<(), Abort> {
        if at >= NOTHING {
            into.fill(0);
            return Ok(());
        }
        let there = self.parts(at, into.len(), |from, done, len| {
            // SAFETY: `parts` checked the source; the destination is the caller's. Concurrent writes are allowed, as to any
            // memory of a device.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(done), len) }
        });
        if there { Ok(()) } else { Err(Abort::Source) }
    }

    /// Writes `data` at `at`.
    #[cold]
    pub fn write(self, at: Iova, data: &[u8]) -> Result<(), Abort> {
        if at >= NOTHING {
            return Ok(());
        }
        let there = self.parts(at, data.len(), |to, done, len| {
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr().add(done), to, len) }
        });
        if there { Ok(()) } else { Err(Abort::Destination) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Geometry;
    use super::*;

    #[test]
    fn bytes_stay_where_they_were_written_and_nothing_lies_behind_the_end() {
        let region = Region::private(Geometry::SMALL);
        let (one, two) = (Memic::of(&region, 1), Memic::of(&region, 2));
        let mut read = [0; 16];
        for at in [0, 4090, u64::from(SIZE) - 16] {
            one.write(WITHIN + at, &[7; 16]).expect("there");
            one.read(WITHIN + at, &mut read).expect("there");
            assert_eq!(read, [7; 16]);
            two.read(WITHIN + at, &mut read).expect("there");
            assert_eq!(read, [0; 16], "another function's");
        }
        for at in [u64::from(SIZE) - 15, u64::from(SIZE), 1 << 47] {
            assert_eq!(one.write(WITHIN + at, &[7; 16]), Err(Abort::Destination));
            assert_eq!(one.read(WITHIN + at, &mut read), Err(Abort::Source));
        }
        assert_eq!(one.write(NOTHING + 5, &[7; 16]), Ok(()));
        assert_eq!((one.read(NOTHING + 5, &mut read), read), (Ok(()), [0; 16]));
    }
}
