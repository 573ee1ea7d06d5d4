//! What of the program's memory lies in files: a table without locks, for a child of fork must not wait for one.

use super::Area;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Parts at most; what goes beyond is not moved, or shared with children.
const ENTRIES: usize = 1024;

/// A part of a file that memory of the program was moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Device number of the file system and inode of the file.
    pub file: (u64, u64),
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Another address at which it is mapped; 0 if there is none.
    pub view: usize,
}

impl Stretch {
    /// The parts of `areas` that show it and are the program's: mappings of a file from its first byte on are views of all of it.
    pub fn shown<'a>(&'a self, areas: &'a [Area]) -> impl Iterator<Item = Area> + 'a {
        let ours = areas.iter().filter(|area| area.shared && area.file == self.file && area.offset != 0);
        ours.filter_map(|area| {
            let first = area.offset.max(self.offset);
            let end = (area.offset + area.size() as u64).min(self.offset + self.len);
            let start = area.start + first.saturating_sub(area.offset) as usize;
            (first < end).then(|| Area { start, end: start + (end - first) as usize, offset: first, ..*area })
        })
    }

    /// Where the bytes of `area`, which shows some of it, can be read.
    pub fn address(&self, area: &Area) -> usize {
        match self.view {
            0 => area.start,
            view => view + (area.offset - self.offset) as usize,
        }
    }
}

/// A stretch: device number, inode, offset, length, view.
struct Entry {
    /// 0: free; 1: being filled or emptied; 2: in use.
    state: AtomicU32,
    words: [AtomicU64; 5],
}

static TABLE: [Entry; ENTRIES] =
    [const { Entry { state: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; 5] } }; ENTRIES];

/// Enters `stretch`. `None`: the table is full.
pub fn enter(stretch: &Stretch) -> Option<()> {
    let free = |entry: &&Entry| entry.state.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let entry = TABLE.iter().find(free)?;
    let Stretch { file: (device, inode), offset, len, view } = *stretch;
    let words = [device, inode, offset, len, view as u64];
    entry.words.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
    entry.state.store(2, Release);
    Some(())
}

/// Takes out what begins within `len` bytes from `offset` of `file`.
pub fn leave(file: (u64, u64), offset: u64, len: u64) {
    for entry in &TABLE {
        let is_meant = stretch(entry)
            .is_some_and(|one| one.file == file && one.offset >= offset && one.offset < offset + len);
        if is_meant && entry.state.compare_exchange(2, 1, Acquire, Relaxed).is_ok() {
            entry.state.store(0, Release);
        }
    }
}

/// Takes out everything.
pub fn clear() {
    TABLE.iter().for_each(|entry| entry.state.store(0, Release));
}

fn stretch(entry: &Entry) -> Option<Stretch> {
    (entry.state.load(Acquire) == 2).then(|| {
        let [device, inode, offset, len, view] = entry.words.each_ref().map(|word| word.load(Relaxed));
        Stretch { file: (device, inode), offset, len, view: view as usize }
    })
}

/// All there are.
pub fn all() -> impl Iterator<Item = Stretch> {
    TABLE.iter().filter_map(stretch)
}
