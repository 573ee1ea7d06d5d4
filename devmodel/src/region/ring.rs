//! The receive ring of a function: frames that crossed the wire and wait for the responder or the requester.
//!
//! Any party may fill it, under the ring's own small lock; the holder of the function consumes it. The order of writes and
//! reads is that of [`sync::Ring`]; a frame that fits one cache line crosses from processor to processor once. Only the
//! consumer index is journaled: the transport repairs a frame lost or duplicated by a death like any other.

use super::{
    Patience, Region, Sync, Table,
    layout::{PAYLOAD, SLOTS},
    prefetch::{prefetch, prefetch_to_write},
    slot::{HEADERS, PIECES, SEALED, SHORT, Slot, SlotPayload},
    window::Block,
};
use crate::host::Host;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use sync::Holding;
use sync::laboratory::{Site, step};

/// Bytes of a cache line.
const LINE: usize = 64;
/// The slot of frame `n` of a function.
#[inline(always)]
pub(super) fn slot_of(region: &Region, block: &Block, n: u32) -> *mut Slot {
    region.row_pointer(block, Table::RxSlot, n as usize % SLOTS, size_of::<Slot>()).cast()
}

/// The word that tells whether frame `n` has been published.
#[inline(always)]
fn word_of<'r>(region: &'r Region, block: &Block, n: u32) -> &'r AtomicU16 {
    // SAFETY: in bounds; only this word of the slot is accessed while the slot may be written, and it is an atomic.
    unsafe { &(*slot_of(region, block, n)).lap }
}

/// True if frame `n` has been published.
#[inline(always)]
pub(super) fn is_there(region: &Region, block: &Block, n: u32) -> bool {
    Ring::is_there(word_of(region, block, n), n)
}

/// The ordering protocol of a function's ring.
type Ring<'r> = sync::Ring<'r, SLOTS>;

impl Block {
    /// The ring's indices, as a [`Ring`].
    #[inline(always)]
    pub(super) fn ring(&self) -> Ring<'_> {
        let word = |word| self.sync(word);
        Ring { tail: word(Sync::RxTail), seen: word(Sync::RxSeen), head: word(Sync::RxHead) }
    }
}

/// The producer side of a function's ring.
pub struct WireRing<'r> {
    region: &'r Region,
    fid: u8,
}

impl<'r> WireRing<'r> {
    /// The ring of `fid`.
    #[inline]
    pub fn of(region: &'r Region, fid: u8) -> Self {
        Self { region, fid }
    }

    /// Free slots; a lower bound.
    #[inline]
    pub fn free(&self) -> usize {
        self.region.block(self.fid).ring().free()
    }

    /// True if a frame waits.
    #[inline]
    pub fn waits(&self) -> bool {
        let block = self.region.block(self.fid);
        block.ring().waits(|n| word_of(self.region, block, n))
    }

    /// Like [`waits`](Self::waits), for a frame that may arrive any moment: polls up to `looks` times. Prefetches the rest of
    /// the frame after its first line, and the next slot; requested while polling, these lines arrive together with the first
    /// line rather than after it.
    #[inline]
    pub fn awaits(&self, looks: u32) -> bool {
        let block = self.region.block(self.fid);
        let next = block.sync(Sync::RxHead).load(Relaxed);
        prefetch(slot_of(self.region, block, next).cast::<u8>().wrapping_add(LINE));
        // And the next slot, which the consumer polls after this frame.
        prefetch(slot_of(self.region, block, next.wrapping_add(1)).cast());
        let word = word_of(self.region, block, next);
        (0..looks).any(|_| Ring::is_there(word, next))
    }

    /// Appends a frame. Returns false if the ring is full or has no memory for the payload, if the frame does not fit a slot,
    /// or if a stopped program holds the ring.
    #[inline]
    pub fn push(&self, host: &mut dyn Host, headers: &[u8], payload: SlotPayload<'_>, sealed: bool) -> bool {
        self.fill(host).is_some_and(|mut filler| filler.push(headers, payload, sealed))
    }

    /// Locks the ring for filling, for as long as the filler lives. `None` if a stopped process holds it: frames to this
    /// function are then lost, as on a wire, and their sender does not delay processes that wait for the sender itself.
    #[inline(always)]
    pub fn fill(&self, host: &mut dyn Host) -> Option<Filler<'r>> {
        let block = self.region.block(self.fid);
        // The next line to be written is in the poller's cache; it is fetched while we take the lock.
        let tail = block.sync(Sync::RxTail).load(Relaxed);
        prefetch_to_write(slot_of(self.region, block, tail).cast());
        let (lock, dead) = block.ring_lock().acquire_with(host, Patience::UntilStopped)?;
        let filler = Filler { region: self.region, block, lock };
        if dead.is_any() {
            self.recount();
            lock.repaired();
        }
        Some(filler)
    }

    /// Counts a frame that a dead filler had published but not yet counted. The caller holds the ring's lock.
    #[cold]
    pub(super) fn recount(&self) {
        let block = self.region.block(self.fid);
        block.ring().recount(|n| word_of(self.region, block, n));
    }
}

/// The party that currently fills a ring, exclusively.
pub struct Filler<'r> {
    region: &'r Region,
    block: &'r Block,
    lock: Holding<'r>,
}

impl Drop for Filler<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.release();
    }
}

impl Filler<'_> {
    /// Appends a frame. Returns false if the ring is full or has no memory for the payload, or if the frame does not fit a slot.
    #[inline(always)]
    pub fn push(&mut self, headers: &[u8], payload: SlotPayload<'_>, sealed: bool) -> bool {
        let fits = headers.len() <= HEADERS
            && match payload {
                SlotPayload::Bytes(b) => b.len() <= PAYLOAD,
                SlotPayload::Pieces(_, p) => !p.is_empty() && p.len() <= PIECES,
            };
        let ring = self.block.ring();
        let Some(tail) = ring.room().filter(|_| fits) else { return false };
        step(Site::Ring);
        let slot = slot_of(self.region, self.block, tail);
        // SAFETY: in bounds; the slot is between tail and head, so it is ours while we hold the ring's lock; lengths were checked above.
        unsafe {
            let to = (&raw mut (*slot).headers).cast::<u8>();
            match headers.len() {
                // The usual case: two copies from both ends, which meet or overlap.
                33..=64 => {
                    to.cast::<Half>().write(headers.as_ptr().cast::<Half>().read());
                    let rest = headers.len() - size_of::<Half>();
                    to.add(rest).cast::<Half>().write(headers.as_ptr().add(rest).cast::<Half>().read());
                }
                len => std::ptr::copy_nonoverlapping(headers.as_ptr(), to, len),
            }
            let (mut form, mut short_len, mut count) = (if sealed { SEALED } else { 0 }, 0, 0);
            match payload {
                SlotPayload::Bytes(bytes) if headers.len() + bytes.len() <= HEADERS => {
                    (form, short_len) = (form | SHORT, bytes.len() as u8);
                    if !bytes.is_empty() {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(headers.len()), bytes.len());
                    }
                }
                SlotPayload::Bytes(bytes) => {
                    let index = tail as usize % SLOTS;
                    if !self.region.has_payload(self.block, index) {
                        return false;
                    }
                    let body = self.region.row_pointer(self.block, Table::RxPayload, index, PAYLOAD);
                    (*slot).payload_len = bytes.len() as u32;
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), body, bytes.len());
                }
                SlotPayload::Pieces(from, pieces) => {
                    self.region.note_sender(self.block.fid, from.0);
                    count = pieces.len() as u8;
                    (*slot).from = from.0;
                    let to = (&raw mut (*slot).piece).cast();
                    std::ptr::copy_nonoverlapping(pieces.as_ptr(), to, pieces.len());
                }
            }
            (*slot).header_len = headers.len() as u8;
            (*slot).pieces = count;
            (*slot).form = form;
            (*slot).short_len = short_len;
        }
        ring.publish(word_of(self.region, self.block, tail), tail);
        true
    }
}

/// Half of a cache line, unaligned.
type Half = [u8; 32];
