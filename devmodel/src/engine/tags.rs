//! VLAN tags removed from and added to a frame on its way through the e-switch.

use crate::state::FlowEntryRow;

/// Offset and length of the outermost tag.
const AT: usize = 12;
const TAG: usize = 4;
/// EtherTypes of tags: IEEE 802.1Q, and 802.1ad for the outer service tag.
const CUSTOMER: u32 = 0x8100;
const SERVICE: u32 = 0x88a8;
/// Maximum number of tags added to a frame; further pushes are ignored.
const MOST: usize = 4;

/// Changes to the tags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags {
    /// Number of original tags to remove.
    off: usize,
    /// Tags to add, from the innermost: EtherType and the two bytes after it.
    on: [u32; MOST],
    count: usize,
}

/// A customer VLAN tag.
pub(super) fn customer(tci: u16) -> u32 {
    CUSTOMER << 16 | u32::from(tci)
}

impl Tags {
    /// Removes the outermost tag.
    pub(super) fn pop(&mut self) {
        match self.count.checked_sub(1) {
            Some(left) => self.count = left,
            None => self.off += 1,
        }
    }

    /// Adds a tag outside the others.
    pub(super) fn push(&mut self, tag: u32) {
        if let Some(place) = self.on.get_mut(self.count) {
            *place = tag;
            self.count += 1;
        }
    }

    /// True if the tags do not change.
    pub(super) fn is_none(&self) -> bool {
        self.off == 0 && self.count == 0
    }

    /// A copy of `frame` with its tags changed.
    pub(super) fn changed(&self, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        self.apply(&mut frame);
        frame
    }

    /// Changes the tags of a frame, or of a part of it that contains all its tags. Does not remove more tags than there are.
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
    /// Number of tags that the entry removes, and the tags that it then adds, from the innermost.
    pub(super) fn tags(&self) -> (usize, &[u32]) {
        let count = |one, two| match self.action {
            action if action & two != 0 => 2,
            action => usize::from(action & one != 0),
        };
        (count(Self::POP, Self::POP_2), &self.push[..count(Self::PUSH, Self::PUSH_2)])
    }

    /// True if `tag` can be added to a frame.
    pub(crate) fn is_tag(tag: u32) -> bool {
        matches!(tag >> 16, CUSTOMER | SERVICE)
    }
}
