//! Memory of the driver. A thread that touches bytes before or behind a block, or a freed block, dies by SIGSEGV.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    io,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const PAGE: usize = 4096;
/// Maximum number of bytes that a driver may hold: more than one page request of a device makes it allocate.
const MOST: usize = 64 << 20;

/// Blocks by start address. An address range is never reused.
#[derive(Default)]
pub struct Memory(BTreeMap<u64, Block>);

struct Block {
    len: usize,
    live: bool,
}

impl Memory {
    /// Allocates a zeroed block.
    pub fn alloc(&mut self, len: usize) -> io::Result<NonNull<u8>> {
        let len = len.next_multiple_of(PAGE).max(PAGE);
        if len + self.0.values().filter(|block| block.live).map(|block| block.len).sum::<usize>() > MOST {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: a new mapping, at an address of the kernel's choice; the pages of the block are within it.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let whole = libc::mmap(std::ptr::null_mut(), len + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            if whole == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let at = whole.byte_add(PAGE);
            if libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                return Err(io::Error::last_os_error());
            }
            at
        };
        self.0.insert(at as u64, Block { len, live: true });
        NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Frees the block at `at`. Returns false if there is none.
    pub fn free(&mut self, at: u64) -> bool {
        let Some(block) = self.0.get_mut(&at).filter(|block| block.live) else { return false };
        block.live = false;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the pages are the block's own. No thread may touch them from now on; the mapping is there to kill a thread that does.
        unsafe { libc::mmap(at as *mut _, block.len, libc::PROT_NONE, flags, -1, 0) };
        true
    }

    /// Returns the length of the live block at `at`.
    pub fn len(&self, at: u64) -> Option<usize> {
        self.0.get(&at).filter(|block| block.live).map(|block| block.len)
    }

    /// Returns the start addresses of the live blocks.
    pub fn places(&self) -> impl Iterator<Item = u64> + Clone {
        self.0.iter().filter(|(_, block)| block.live).map(|(at, _)| *at)
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let (base, block) = self.0.range(..=at).next_back()?;
        if !block.live || at % 8 != 0 || at - base >= block.len as u64 {
            return None;
        }
        // SAFETY: a word of a live block, which stays as long as it is borrowed; all accesses are atomic.
        Some(unsafe { &*(at as *const AtomicU64) })
    }

    /// Reads the word at `at`, as the device does.
    pub fn read(&self, at: u64) -> Option<u64> {
        self.word(at).map(|word| u64::from_be_bytes(word.load(Relaxed).to_ne_bytes()))
    }

    /// Writes the word at `at`, if it exists.
    pub fn write(&self, at: u64, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(u64::from_ne_bytes(value.to_be_bytes()), Relaxed);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (at, block) in &self.0 {
            // SAFETY: the whole mapping of `alloc`. The driver that used it is gone: it held the transport, and the transport holds this.
            unsafe { libc::munmap((*at as usize - PAGE) as *mut _, block.len + 2 * PAGE) };
        }
    }
}
