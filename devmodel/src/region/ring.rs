//! The receive ring of a function: frames that crossed the wire and wait for the responder or the requester.
//!
//! Any party may fill it (under the ring's own small lock, with the tail as the only thing published, so that a
//! filler who dies leaves nothing); the holder of the function takes from it. Nothing here is journaled but the index
//! taken: a frame lost or doubled by a death is one more thing the transport repairs.

use super::{Func, Region, Sync, Table, lock};
use crate::host::{Host, Iova, Rid};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Slots of a ring.
pub const SLOTS: usize = 512;
/// Bytes of payload a slot holds by value.
pub(super) const PAYLOAD: usize = super::MAX_FRAME;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of headers a slot holds.
const HEADERS: usize = 128;
/// Pieces of payload a slot may refer to.
const PIECES: usize = 4;

/// Payload that still lies in the sender's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Piece {
    /// Where, in the sending function's address space.
    pub at: Iova,
    /// Bytes.
    pub len: u32,
    /// Padding.
    pub reserved: u32,
}

/// One frame in a ring: headers as bytes; payload (and ICRC) behind them or by reference.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Slot {
    header_len: u16,
    /// Pieces; 0 is by value.
    pieces: u8,
    /// Function the pieces belong to.
    from: u8,
    payload_len: u32,
    /// 1: the payload is by value and followed by pad and ICRC.
    sealed: u32,
    /// 1: the payload is so short that it lies in `headers`, behind the headers.
    short: u32,
    headers: [u8; HEADERS],
    piece: [Piece; PIECES],
}

/// What a frame carries behind its headers.
#[derive(Clone, Copy, Debug)]
pub enum SlotPayload<'a> {
    /// The bytes themselves; pad and ICRC behind them if the frame is sealed.
    Bytes(&'a [u8]),
    /// Where they lie in the memory of function `0`, and how many they are.
    Pieces(Rid, &'a [Piece]),
}

impl Slot {
    /// Whether pad and ICRC follow the payload, to be checked.
    pub fn is_sealed(&self) -> bool {
        self.sealed != 0
    }
    /// Ethernet to the last extension header.
    pub fn headers(&self) -> &[u8] {
        &self.headers[..(self.header_len as usize).min(HEADERS)]
    }
}

/// The filling side of a function's ring.
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

    /// Free slots, about: at least so many.
    #[inline]
    pub fn free(&self) -> usize {
        let tail = self.region.sync(self.fid, Sync::RxNext).load(Relaxed);
        let left = |head: u32| SLOTS - (tail.wrapping_sub(head) as usize).min(SLOTS);
        // The taker writes its head all the time; what we saw last will do while it says there is plenty.
        match left(self.region.sync(self.fid, Sync::RxSeen).load(Relaxed)) {
            plenty if plenty >= SLOTS / 2 => plenty,
            _ => left(self.region.sync(self.fid, Sync::RxHead).load(Acquire)),
        }
    }

    /// Whether a frame waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.region.sync(self.fid, Sync::RxTail).load(SeqCst)
            != self.region.sync(self.fid, Sync::RxHead).load(Relaxed)
    }

    /// Has the processor bring the place of the next frame near. Asked for with every look whether there is one, the frame
    /// comes along with the word that tells of it, and not behind it.
    #[inline]
    pub fn foresee(&self) {
        let next = self.region.sync(self.fid, Sync::RxHead).load(Relaxed);
        let base = self.region.checked_base(self.fid);
        let slot = self.region.row_pointer(base, Table::RxSlot, next as usize % SLOTS, size_of::<Slot>());
        for line in [0, LINE] {
            super::prefetch(slot.wrapping_add(line));
        }
    }

    /// Appends a frame. False if the ring is full or the frame does not fit a slot.
    #[inline]
    pub fn push(&self, host: &mut dyn Host, headers: &[u8], payload: SlotPayload<'_>, sealed: bool) -> bool {
        self.fill(host).push(headers, payload, sealed)
    }

    /// Takes the ring to put frames into it, as long as the filler lives.
    #[inline(always)]
    pub fn fill(&self, host: &mut dyn Host) -> Filler<'r> {
        let base = self.region.checked_base(self.fid);
        lock::acquire(self.region.sync_at(base, Sync::RxLock), host);
        Filler { region: self.region, base }
    }
}

/// Who fills a ring, alone.
pub struct Filler<'r> {
    region: &'r Region,
    base: usize,
}

impl Drop for Filler<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        lock::release(self.region.sync_at(self.base, Sync::RxLock));
    }
}

impl Filler<'_> {
    /// Appends a frame. False if the ring is full or the frame does not fit a slot.
    #[inline(always)]
    pub fn push(&mut self, headers: &[u8], payload: SlotPayload<'_>, sealed: bool) -> bool {
        let fits = headers.len() <= HEADERS
            && match payload {
                SlotPayload::Bytes(b) => b.len() <= PAYLOAD,
                SlotPayload::Pieces(_, p) => !p.is_empty() && p.len() <= PIECES,
            };
        let word = |word| self.region.sync_at(self.base, word);
        let tail = word(Sync::RxNext).load(Acquire);
        let mut head = word(Sync::RxSeen).load(Relaxed);
        if tail.wrapping_sub(head) as usize > SLOTS / 2 {
            head = word(Sync::RxHead).load(Acquire);
            word(Sync::RxSeen).store(head, Release);
        }
        if !fits || tail.wrapping_sub(head) as usize >= SLOTS {
            return false;
        }
        let index = tail as usize % SLOTS;
        let slot = self.region.row_pointer(self.base, Table::RxSlot, index, size_of::<Slot>());
        // SAFETY: in bounds; the slot lies between tail and head, so it is ours while we hold the ring's lock; lengths were
        // checked above.
        unsafe {
            let slot = slot.cast::<Slot>();
            (*slot).header_len = headers.len() as u16;
            (*slot).sealed = sealed.into();
            let to = (&raw mut (*slot).headers).cast::<u8>();
            match headers.len() {
                // As nearly all are; both ends meet or overlap.
                33..=64 => {
                    to.cast::<Half>().write(headers.as_ptr().cast::<Half>().read());
                    let rest = headers.len() - size_of::<Half>();
                    to.add(rest).cast::<Half>().write(headers.as_ptr().add(rest).cast::<Half>().read());
                }
                len => std::ptr::copy_nonoverlapping(headers.as_ptr(), to, len),
            }
            match payload {
                SlotPayload::Bytes(bytes) => {
                    let short = headers.len() + bytes.len() <= HEADERS;
                    let body = match short {
                        true => to.add(headers.len()),
                        false => self.region.row_pointer(self.base, Table::RxPayload, index, PAYLOAD),
                    };
                    (*slot).short = short.into();
                    (*slot).pieces = 0;
                    (*slot).payload_len = bytes.len() as u32;
                    if !bytes.is_empty() {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), body, bytes.len());
                    }
                }
                SlotPayload::Pieces(from, pieces) => {
                    (*slot).short = 0;
                    (*slot).pieces = pieces.len() as u8;
                    (*slot).from = from.0;
                    (*slot).payload_len = pieces.iter().map(|p| p.len).sum();
                    let to = (&raw mut (*slot).piece).cast();
                    std::ptr::copy_nonoverlapping(pieces.as_ptr(), to, pieces.len());
                }
            }
        }
        // In this order: who dies in between leaves a whole frame, which comes with the next one. Whoever lets go of the
        // lock of the dead has nothing to repair.
        word(Sync::RxNext).store(tail.wrapping_add(1), Release);
        word(Sync::RxTail).store(tail.wrapping_add(1), Release);
        true
    }
}

/// Half of a cache line, anywhere.
type Half = [u8; 32];

impl<'r> Func<'r> {
    /// Whether a frame is there to be taken.
    #[inline]
    pub fn has_frame(&self) -> bool {
        self.sync(Sync::RxTail).load(Acquire) != self.function().rx_next
    }

    /// The oldest frame not taken: its slot and the bytes or pieces behind it. It stays valid until this function
    /// commits.
    #[inline]
    pub fn front(&self) -> Option<(&'r Slot, SlotPayload<'r>)> {
        let next = self.function().rx_next;
        if self.sync(Sync::RxTail).load(Acquire) == next {
            return None;
        }
        let region = self.region();
        let base = region.checked_base(self.fid());
        let index = next as usize % SLOTS;
        let slot = region.row_pointer(base, Table::RxSlot, index, size_of::<Slot>());
        // SAFETY: in bounds; slots before the tail are not written until the head passes them, which only we move.
        let slot: &'r Slot = unsafe { &*slot.cast() };
        let payload = match slot.pieces {
            0 if slot.short != 0 => {
                let behind = slot.headers.get(slot.header_len as usize..).unwrap_or_default();
                SlotPayload::Bytes(behind.get(..slot.payload_len as usize).unwrap_or_default())
            }
            0 => {
                let body = region.row_pointer(base, Table::RxPayload, index, PAYLOAD);
                // SAFETY: as for the slot; the length is bounded.
                SlotPayload::Bytes(unsafe {
                    std::slice::from_raw_parts(body, (slot.payload_len as usize).min(PAYLOAD))
                })
            }
            n => SlotPayload::Pieces(Rid(slot.from), &slot.piece[..(n as usize).min(PIECES)]),
        };
        Some((slot, payload))
    }

    /// Takes the frame that [`front`](Self::front) shows. Its slot goes back to the senders at the commit.
    #[inline]
    pub fn take_front(&mut self) {
        let next = self.function().rx_next;
        *self.function_mut(|f| &mut f.rx_next) = next.wrapping_add(1);
    }

    /// Fetches the payload of all frames that wait here and lie in memory of `from`: they refer to it no longer. A frame
    /// whose payload can't be read loses its headers too, and is dropped as malformed.
    pub fn fetch_pieces(&mut self, host: &mut dyn Host, from: Rid) {
        let region = self.region();
        let base = region.checked_base(self.fid());
        let tail = region.sync(self.fid(), Sync::RxTail).load(Acquire);
        let mut next = self.function().rx_next;
        while next != tail {
            let index = next as usize % SLOTS;
            next = next.wrapping_add(1);
            let slot = region.row_pointer(base, Table::RxSlot, index, size_of::<Slot>());
            let body = region.row_pointer(base, Table::RxPayload, index, PAYLOAD);
            // SAFETY: in bounds; slots between head and tail belong to the holder of the function's lock, which we are;
            // `&mut self` rules out a reference from `front`.
            let (slot, body) =
                unsafe { (&mut *slot.cast::<Slot>(), std::slice::from_raw_parts_mut(body, PAYLOAD)) };
            if slot.pieces == 0 || slot.from != from.0 {
                continue;
            }
            let mut at = 0;
            for piece in &slot.piece[..(slot.pieces as usize).min(PIECES)] {
                let end = at + piece.len as usize;
                match body.get_mut(at..end).map(|part| host.read(from, piece.at, part)) {
                    Some(Ok(())) => at = end,
                    _ => slot.header_len = 0,
                }
            }
            slot.payload_len = at as u32;
            slot.pieces = 0;
        }
    }
}
