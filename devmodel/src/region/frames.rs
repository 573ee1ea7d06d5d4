//! Frames in a function's receive ring, as seen by the holder of the function.

use super::{
    Func, Table,
    layout::{PAYLOAD, SLOTS},
    ring::{is_there, slot_of},
    slot::{PIECES, SHORT, Slot, SlotPayload},
};
use crate::host::{Host, Rid};
use sync::laboratory::{Site, step};

impl<'r> Func<'r> {
    /// True if a frame is waiting.
    #[inline]
    pub fn has_frame(&self) -> bool {
        is_there(self.region(), self.block(), self.function().rx_next)
    }

    /// The oldest frame not yet taken: its slot, and its payload as bytes or pieces. Valid until this function commits.
    #[inline]
    pub fn front(&self) -> Option<(&'r Slot, SlotPayload<'r>)> {
        let (region, block, next) = (self.region(), self.block(), self.function().rx_next);
        if !is_there(region, block, next) {
            return None;
        }
        // SAFETY: in bounds; a slot with a published frame is not written until the head passes it, and only we move the head.
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

    /// Consumes the frame that [`front`](Self::front) returns. The commit returns its slot to the senders.
    #[inline]
    pub fn take_front(&mut self) {
        let next = self.function().rx_next;
        *self.function_mut(|f| &mut f.rx_next) = next.wrapping_add(1);
    }

    /// The value of the count of [`take_front`](Self::take_front) once all frames that are waiting now are consumed.
    pub fn behind_frames(&self) -> u32 {
        let mut next = self.function().rx_next;
        while is_there(self.region(), self.block(), next) {
            next = next.wrapping_add(1);
        }
        next
    }

    /// Copies in the payload of all waiting frames that refer to memory of `from`, so that they no longer refer to it. If a
    /// payload cannot be read, the frame's headers are cleared as well and it is dropped as malformed.
    pub fn fetch_pieces(&mut self, host: &mut dyn Host, from: Rid) {
        let (region, block) = (self.region(), self.block());
        let mut next = self.function().rx_next;
        while is_there(region, block, next) {
            let slot = slot_of(region, block, next);
            let index = next as usize % SLOTS;
            next = next.wrapping_add(1);
            step(Site::Ring);
            // SAFETY: in bounds; except for its lap, which is not touched, a slot with a published frame belongs to the holder
            // of the function's lock (us) until the head passes it; `&mut self` excludes a live reference from `front`.
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
