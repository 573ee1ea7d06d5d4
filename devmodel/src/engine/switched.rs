//! Delivery by the e-switch's decision, and notes between functions.

use super::{delivery::seal, runner::Runner};
use crate::{
    Adapter,
    host::Host,
    mlx5::{Frame, rates},
    region::{Func, Left, SlotPayload, WireRing},
};

impl Runner {
    /// [`put`](Self::put) for frames that the e-switch forwards.
    #[cold]
    pub(super) fn put_switched(
        &mut self,
        adapter: &Adapter,
        host: &mut dyn Host,
        now: u64,
        from: u8,
        frame: &Frame,
        staged: &[u8],
    ) {
        let link_layer = adapter.config().link_layer;
        let head = &frame.headers[..frame.header_len as usize];
        let mut whole = std::mem::take(&mut self.sealed);
        whole.clear();
        if adapter.config().sealed || adapter.is_captured() {
            if seal(host, link_layer, from, frame, staged, &mut whole).is_ok() {
                self.transmit(adapter, host, now, from, &mut whole);
            }
            self.sealed = whole;
            return;
        }
        self.switch.refresh(adapter);
        let route = self.switch.route(adapter, Some(from), head, head.len() + frame.payload.len());
        for (to, tags) in route {
            let mut one = *frame;
            // A frame with headers that fill their space already has no room for another tag.
            if !tags.is_none() && !change_headers(&mut one, |head| tags.apply(head)) {
                continue;
            }
            match to {
                Some(to) => self.enter(adapter, host, to, from, &one, staged),
                None if seal(host, link_layer, from, &one, staged, &mut whole).is_ok() => {
                    self.leave(adapter, host, Left { from: Some(from), now }, &whole);
                }
                None => {}
            }
        }
        self.sealed = whole;
    }

    /// Puts a note of `from` into the ring of `to`. It is recognized by its lack of headers, which every frame has.
    pub(super) fn note(&mut self, adapter: &Adapter, host: &mut dyn Host, from: u8, to: u8, vport: u8) {
        if adapter.is_there(to) {
            let room = WireRing::of(adapter.region(), to).push(host, &[], SlotPayload::Bytes(&[vport]), true);
            self.entered(adapter, host, Some(from), to, room);
        }
    }
}

/// Charges `bytes` sent by `func` against the rate limit of its port.
#[cold]
pub(super) fn keep_pace(host: &mut dyn Host, now: u64, func: &mut Func<'_>, bytes: u64) {
    if func.region().is_switched() {
        rates::sent(func, now, bytes);
        func.commit(host);
    }
}

/// Changes the headers of a frame. Returns false without changing anything if the result does not fit.
fn change_headers(frame: &mut Frame, change: impl FnOnce(&mut Vec<u8>)) -> bool {
    let mut headers = frame.headers[..frame.header_len as usize].to_vec();
    change(&mut headers);
    let Some(room) = frame.headers.get_mut(..headers.len()) else { return false };
    room.copy_from_slice(&headers);
    frame.header_len = headers.len() as u16;
    true
}
