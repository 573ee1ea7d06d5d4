//! The file extents that pages have migrated to: a lock-free table, since a child of fork must not wait for a lock.

use super::Area;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Maximum number of extents. Pages of further extents do not migrate, or are shared with children.
const ENTRIES: usize = 1024;

/// A range of a file that pages of the program have migrated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Device number of the file system and inode of the file.
    pub file: (u64, u64),
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address of another mapping of it, 0 if there is none.
    pub view: usize,
}

impl Extent {
    /// The parts of `areas` where the program has mapped it, excluding the view.
    pub fn mapped_in<'a>(&'a self, areas: &'a [Area]) -> impl Iterator<Item = Area> + 'a {
        let ours = areas.iter().filter(|area| area.shared && area.file == self.file);
        ours.filter_map(|area| {
            let first = area.offset.max(self.offset);
            let end = (area.offset + area.size() as u64).min(self.offset + self.len);
            let start = area.start + first.saturating_sub(area.offset) as usize;
            let viewed = self.view != 0 && start == self.view + first.saturating_sub(self.offset) as usize;
            (first < end && !viewed).then(|| Area {
                start,
                end: start + (end - first) as usize,
                offset: first,
                ..*area
            })
        })
    }

    /// The address at which the bytes of `area`, which maps part of the extent, can be read.
    pub fn address(&self, area: &Area) -> usize {
        match self.view {
            0 => area.start,
            view => view + (area.offset - self.offset) as usize,
        }
    }
}

/// The words of an extent: device number, inode, offset, length, view.
struct Entry {
    /// 0: free; 1: being filled or emptied; 2: in use.
    state: AtomicU32,
    words: [AtomicU64; 5],
}

static TABLE: [Entry; ENTRIES] =
    [const { Entry { state: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; 5] } }; ENTRIES];

/// Adds `extent`. `None` if the table is full.
pub fn enter(extent: &Extent) -> Option<()> {
    let free = |entry: &&Entry| entry.state.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let entry = TABLE.iter().find(free)?;
    let Extent { file: (device, inode), offset, len, view } = *extent;
    let words = [device, inode, offset, len, view as u64];
    entry.words.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
    entry.state.store(2, Release);
    Some(())
}

/// Removes the extents that start within `len` bytes at `offset` of `file`.
pub fn leave(file: (u64, u64), offset: u64, len: u64) {
    for entry in &TABLE {
        let is_meant = extent(entry)
            .is_some_and(|one| one.file == file && one.offset >= offset && one.offset < offset + len);
        if is_meant && entry.state.compare_exchange(2, 1, Acquire, Relaxed).is_ok() {
            entry.state.store(0, Release);
        }
    }
}

/// Removes all extents.
pub fn clear() {
    TABLE.iter().for_each(|entry| entry.state.store(0, Release));
}

fn extent(entry: &Entry) -> Option<Extent> {
    (entry.state.load(Acquire) == 2).then(|| {
        let [device, inode, offset, len, view] = entry.words.each_ref().map(|word| word.load(Relaxed));
        Extent { file: (device, inode), offset, len, view: view as usize }
    })
}

/// All extents.
pub fn all() -> impl Iterator<Item = Extent> {
    TABLE.iter().filter_map(extent)
}
