//! VLAN tags that come off a frame and go on it on its way through the e-switch.

use crate::state::FlowEntryRow;

/// Where the outermost tag lies, and how long it is.
const AT: usize = 12;
const TAG: usize = 4;
/// EtherTypes of a tag: IEEE 802.1Q, and 802.1ad for the service tag around one.
const CUSTOMER: u32 = 0x8100;
const SERVICE: u32 = 0x88a8;
/// Tags a frame gets at most; what is pushed beside them is left out.
const MOST: usize = 4;

/// How the tags of a frame change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags {
    /// Tags of the frame as it came that come off.
    off: usize,
    /// Tags that go on, from the innermost: EtherType and what follows it.
    on: [u32; MOST],
    count: usize,
}

/// The tag of a customer's VLAN.
pub(super) fn customer(tci: u16) -> u32 {
    CUSTOMER << 16 | u32::from(tci)
}

impl Tags {
    /// The outermost tag comes off.
    pub(super) fn pop(&mut self) {
        match self.count.checked_sub(1) {
            Some(left) => self.count = left,
            None => self.off += 1,
        }
    }

    /// One more tag goes on, outside of the others.
    pub(super) fn push(&mut self, tag: u32) {
        if let Some(place) = self.on.get_mut(self.count) {
            *place = tag;
            self.count += 1;
        }
    }

    /// True if nothing changes.
    pub(super) fn is_none(&self) -> bool {
        self.off == 0 && self.count == 0
    }

    /// A frame with its tags changed.
    pub(super) fn changed(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        self.apply(&mut frame);
        frame
    }

    /// Changes a frame, or as much of it as has all its tags. Where there is no tag none comes off.
    pub(super) fn apply(&self, frame: &mut Vec<u8>) {
        for _ in 0..self.off {
            let kind = frame.get(AT..AT + 2).map(|kind| u32::from(kind[0]) << 8 | u32::from(kind[1]));
            if !matches!(kind, Some(CUSTOMER | SERVICE)) || frame.len() < AT + TAG {
                break;
            }
            frame.drain(AT..AT + TAG);
        }
        let on = if frame.len() < AT { 0 } else { self.count };
        for tag in &self.on[..on] {
            frame.splice(AT..AT, tag.to_be_bytes());
        }
    }
}

impl FlowEntryRow {
    /// Tags that the entry takes off, and those it puts on then, from the innermost.
    pub(super) fn tags(&self) -> (usize, &[u32]) {
        let count = |one, two| match self.action {
            action if action & two != 0 => 2,
            action => usize::from(action & one != 0),
        };
        (count(Self::POP, Self::POP_2), &self.push[..count(Self::PUSH, Self::PUSH_2)])
    }

    /// True if `tag` can be put on a frame.
    pub(crate) fn is_tag(tag: u32) -> bool {
        matches!(tag >> 16, CUSTOMER | SERVICE)
    }
}
