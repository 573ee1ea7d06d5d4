//! Frames that wait in a function's receive ring, for the holder of the function.

use super::{
    Func, Table,
    layout::{PAYLOAD, SLOTS},
    ring::{is_there, slot_of},
    slot::{PIECES, SHORT, Slot, SlotPayload},
};
use crate::host::{Host, Rid};
use sync::laboratory::{Site, step};

impl<'r> Func<'r> {
    /// True if a frame is there to be taken.
    #[inline]
    pub fn has_frame(&self) -> bool {
        is_there(self.region(), self.block(), self.function().rx_next)
    }

    /// The oldest frame not taken: its slot and the bytes or pieces behind it. It stays valid until this function
    /// commits.
    #[inline]
    pub fn front(&self) -> Option<(&'r Slot, SlotPayload<'r>)> {
        let (region, block, next) = (self.region(), self.block(), self.function().rx_next);
        if !is_there(region, block, next) {
            return None;
        }
        // SAFETY: in bounds; a slot whose frame is there is not written until the head passes it, which only we move.
        let slot: &'r Slot = unsafe { &*slot_of(region, block, next) };
        let payload = match slot.pieces {
            0 if slot.form & SHORT != 0 => {
                let behind = slot.headers.get(slot.header_len as usize..).unwrap_or_default();
                SlotPayload::Bytes(behind.get(..slot.short_len as usize).unwrap_or_default())
            }
            0 => {
                let body = region.row_pointer(block, Table::RxPayload, next as usize % SLOTS, PAYLOAD);
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

    /// The count of [`take_front`](Self::take_front) when all frames that are there now have been taken.
    pub fn behind_frames(&self) -> u32 {
        let mut next = self.function().rx_next;
        while is_there(self.region(), self.block(), next) {
            next = next.wrapping_add(1);
        }
        next
    }

    /// Fetches the payload of all frames that wait here and lie in memory of `from`: they refer to it no longer. A frame
    /// whose payload can't be read loses its headers too, and is dropped as malformed.
    pub fn fetch_pieces(&mut self, host: &mut dyn Host, from: Rid) {
        let (region, block) = (self.region(), self.block());
        let mut next = self.function().rx_next;
        while is_there(region, block, next) {
            let slot = slot_of(region, block, next);
            let index = next as usize % SLOTS;
            next = next.wrapping_add(1);
            step(Site::Ring);
            // SAFETY: in bounds; but for its lap, which is left alone, a slot whose frame is there belongs to the holder of the
            // function's lock, which we are, until the head passes it; `&mut self` rules out a reference from `front`.
            unsafe {
                let count = ((*slot).pieces as usize).min(PIECES);
                if count == 0 || (*slot).from != from.0 {
                    continue;
                }
                if !region.has_payload(block, index) {
                    ((*slot).pieces, (*slot).header_len, (*slot).payload_len) = (0, 0, 0);
                    continue;
                }
                let pieces = (*slot).piece;
                let body = region.row_pointer(block, Table::RxPayload, index, PAYLOAD);
                let body = std::slice::from_raw_parts_mut(body, PAYLOAD);
                let mut at = 0;
                for piece in &pieces[..count] {
                    let end = at + piece.len as usize;
                    match body.get_mut(at..end).map(|part| host.read(from, piece.at, part)) {
                        Some(Ok(())) => at = end,
                        _ => (*slot).header_len = 0,
                    }
                }
                step(Site::Ring);
                (*slot).payload_len = at as u32;
                ((*slot).pieces, (*slot).form) = (0, (*slot).form & !SHORT);
            }
        }
    }
}
