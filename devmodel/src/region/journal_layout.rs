//! Layout of a journal in the region.

use std::{mem::offset_of, sync::atomic::AtomicU32};

pub(super) const ENTRIES: usize = 512;
pub(super) const UNDO: usize = 192 << 10;
pub(super) const EFFECTS: usize = 64 << 10;

/// Largest write that a single effect can hold.
pub(super) const EFFECT_DATA: usize = 128;

/// A recorded effect.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Noted {
    /// [`WRITE`] or [`MSIX`].
    pub(super) kind: u32,
    /// Bytes to write, or the interrupt vector.
    pub(super) len: u32,
    /// Bus address of the write, or the message address.
    pub(super) at: u64,
    /// The message data.
    pub(super) message: u32,
    pub(super) reserved: u32,
    pub(super) data: [u8; EFFECT_DATA],
}

pub(super) const WRITE: u32 = 0;
pub(super) const MSIX: u32 = 1;
/// Most effects of one job.
pub(super) const NOTED: usize = EFFECTS / size_of::<Noted>();

#[repr(C)]
pub(super) struct Layout {
    /// 1: the effects must be carried out. 0: the undo entries must be undone.
    pub(super) committed: AtomicU32,
    pub(super) entries: AtomicU32,
    pub(super) undo_bytes: AtomicU32,
    pub(super) effects: AtomicU32,
    /// Rows that did not fit; their changes are not undone if a holder dies.
    pub(super) overflows: AtomicU32,
    pub(super) reserved: [u32; 3],
    pub(super) index: [Entry; ENTRIES],
    pub(super) undo: [u8; UNDO],
    pub(super) effect: [Noted; NOTED],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Entry {
    /// Table and offset within it.
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) data: u32,
}

/// Bytes of a journal.
pub(super) const SIZE: usize = size_of::<Layout>();

/// Offsets and lengths of the parts that jobs of ordinary size fill: counts, index, and the first rows and effects.
pub(super) const OFTEN_USED: [(usize, usize); 2] =
    [(0, offset_of!(Layout, undo) + (8 << 10)), (offset_of!(Layout, effect), 8 << 10)];
