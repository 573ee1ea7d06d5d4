//! Memory of the driver's own. A thread that touches bytes before a block or behind it, or a freed block, ends by SIGSEGV.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    io,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const PAGE: usize = 4096;
/// Bytes that a driver may have: of what a device asks for, more than one request brings.
const MOST: usize = 64 << 20;

/// Blocks by where they begin. Nothing else ever lies where one was.
#[derive(Default)]
pub struct Memory(BTreeMap<u64, Block>);

struct Block {
    len: usize,
    live: bool,
}

impl Memory {
    /// A block of zeros.
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

    /// Frees the block at `at`. False: there is none.
    pub fn free(&mut self, at: u64) -> bool {
        let Some(block) = self.0.get_mut(&at).filter(|block| block.live) else { return false };
        block.live = false;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the block's own pages, which nobody may touch from now on: to end those who do is what this is for.
        unsafe { libc::mmap(at as *mut _, block.len, libc::PROT_NONE, flags, -1, 0) };
        true
    }

    /// The bytes of the live block at `at`.
    pub fn len(&self, at: u64) -> Option<usize> {
        self.0.get(&at).filter(|block| block.live).map(|block| block.len)
    }

    /// Where live blocks begin.
    pub fn places(&self) -> impl Iterator<Item = u64> + Clone {
        self.0.iter().filter(|(_, block)| block.live).map(|(at, _)| *at)
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let (base, block) = self.0.range(..=at).next_back()?;
        if !block.live || at % 8 != 0 || at - base >= block.len as u64 {
            return None;
        }
        // SAFETY: a word of a live block, which stays as long as it is borrowed; everybody touches it by atomics alone.
        Some(unsafe { &*(at as *const AtomicU64) })
    }

    /// The word at `at`, as the device reads it.
    pub fn read(&self, at: u64) -> Option<u64> {
        self.word(at).map(|word| u64::from_be_bytes(word.load(Relaxed).to_ne_bytes()))
    }

    /// Writes the word at `at`, if there is one.
    pub fn write(&self, at: u64, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(u64::from_ne_bytes(value.to_be_bytes()), Relaxed);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (at, block) in &self.0 {
            // SAFETY: the whole mapping of `alloc`. The driver that used it is gone: it held the transport, and that this.
            unsafe { libc::munmap((*at as usize - PAGE) as *mut _, block.len + 2 * PAGE) };
        }
    }
}
