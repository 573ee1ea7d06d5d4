//! Entries of a shared receive queue: posted, free, and their order.
//!
//! Messages complete in any order, so the entries form a linked list, which the device follows. Free entries are the
//! tail of that list, after the posted ones. A completed entry is appended to it. One entry is never posted, so that
//! the successor of the last posted one is always known.

use crate::inline::Inbox;
use hwspec::wqe::NextSeg;
use sync::{BiasedGuard, BiasedMutex};

/// The receives of one shared queue, used by posts and polls.
pub struct SharedReceives {
    /// Number of the queue.
    pub srqn: u32,
    inbox: Inbox,
    /// Bytes that come in a CQE may be copied to the receive's buffers.
    in_cqes: bool,
    free: BiasedMutex<FreeList>,
}

/// Posted and free entries.
pub struct FreeList {
    /// The next entry to be posted.
    head: u32,
    /// The last entry of the list.
    tail: u32,
    /// Total number of receives posted.
    posted: u32,
    entries: Box<[Entry]>,
}

#[derive(Clone, Copy)]
struct Entry {
    next: u32,
    wr_id: u64,
    /// Posted and not yet completed.
    under_way: bool,
}

impl FreeList {
    /// Total number of receives posted.
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// The entry for the next receive, `None` if all are in use.
    pub fn next(&self) -> Option<u32> {
        (self.head != self.tail).then_some(self.head)
    }

    /// Marks the entry returned by [`next`](Self::next) as posted.
    pub fn post(&mut self, wr_id: u64) {
        let entry = &mut self.entries[self.head as usize];
        (entry.wr_id, entry.under_way) = (wr_id, true);
        self.head = entry.next;
        self.posted = self.posted.wrapping_add(1);
    }
}

impl SharedReceives {
    /// Creates a list of all `entries` (a power of two) of the ring in `inbox`, free and in order. Bytes that come in a CQE are copied to
    /// the receives' buffers only with `in_cqes`.
    pub fn new(inbox: Inbox, entries: u32, in_cqes: bool) -> Self {
        let list = (0..entries).map(|at| Entry { next: (at + 1) % entries, wr_id: 0, under_way: false });
        let free = FreeList { head: 0, tail: entries - 1, posted: 0, entries: list.collect() };
        let this = Self { srqn: 0, inbox, in_cqes, free: BiasedMutex::new(free) };
        (0..entries).for_each(|at| this.link(at, (at + 1) % entries));
        this
    }

    /// Sets the number of the queue.
    pub fn numbered(self, srqn: u32) -> Self {
        Self { srqn, ..self }
    }

    /// True if bytes that come in a CQE may be copied to the receives' buffers.
    pub fn takes_data_in_cqes(&self) -> bool {
        self.in_cqes
    }

    /// The ring of the entries.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Locks the list for posting.
    pub fn lock(&self) -> BiasedGuard<'_, FreeList> {
        self.free.lock()
    }

    fn link(&self, entry: u32, next: u32) {
        let segment = NextSeg::with(|s| s.next_wqe_index(next as u16));
        self.inbox.ring.put_segment(entry, 0, segment.as_bytes());
    }

    /// Completes the receive in entry `counter`. `None` if none is outstanding there. Bytes that came in the CQE are
    /// copied to the receive's buffers before the entry is freed; the bool is false if they do not fit.
    pub fn complete(&self, counter: u16, bytes: Option<&[u8]>) -> Option<(u64, bool)> {
        let mut free = self.free.lock();
        let at = u32::from(counter);
        let entry = free.entries.get_mut(at as usize).filter(|entry| entry.under_way)?;
        let wr_id = entry.wr_id;
        entry.under_way = false;
        let fits = bytes.is_none_or(|bytes| self.in_cqes && self.inbox.put(at, bytes));
        let tail = free.tail;
        if let Some(last) = free.entries.get_mut(tail as usize) {
            last.next = at;
        }
        self.link(tail, at);
        free.tail = at;
        Some((wr_id, fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dma::{DmaMem, DmaRing},
        transport::{Scope, Transport, fake::Chip},
    };
    use hwspec::wqe::{DataSeg, INVALID_LKEY};
    use std::sync::Arc;

    /// Four entries of 64 bytes.
    fn receives() -> SharedReceives {
        let transport: Arc<dyn Transport> = Chip::new().opener(1);
        let mem = Arc::new(DmaMem::alloc(&transport, 256, Scope::Opener).unwrap());
        let ring = DmaRing::new(mem, 0, 4, 64);
        SharedReceives::new(Inbox { ring, first: 1, segments: 3, shifted: Arc::default() }, 4, true)
            .numbered(9)
    }

    fn post(receives: &SharedReceives, wr_id: u64) -> Option<u32> {
        let mut free = receives.lock();
        let at = free.next()?;
        free.post(wr_id);
        Some(at)
    }

    /// The entry that the device goes to after `at`.
    fn next(receives: &SharedReceives, at: u32) -> u32 {
        NextSeg::from_bytes(receives.inbox().ring.get_segment(at, 0)).next_wqe_index().into()
    }

    #[test]
    fn one_entry_is_kept_back() {
        let receives = receives();
        assert_eq!([0, 1, 2, 3].map(|wr_id| post(&receives, wr_id)), [Some(0), Some(1), Some(2), None]);
        assert_eq!(receives.lock().posted(), 3);
    }

    #[test]
    fn the_device_finds_every_entry_posted_whatever_the_order_of_completions() {
        let receives = receives();
        let mut device = 0;
        let mut under_way = Vec::new();
        for step in 0..1000u64 {
            while let Some(at) = post(&receives, step << 8 | under_way.len() as u64) {
                assert_eq!(at, device, "step {step}");
                device = next(&receives, at);
                under_way.push(at);
            }
            let done = under_way.swap_remove((step * 7 % under_way.len() as u64) as usize);
            assert!(
                receives.complete(done as u16, None).is_some_and(|(wr_id, fits)| wr_id >> 8 <= step && fits)
            );
            assert_eq!(receives.complete(done as u16, None), None, "once");
        }
    }

    #[test]
    fn entries_nobody_posted_do_not_complete() {
        let receives = receives();
        post(&receives, 1);
        for counter in [1, 2, 3, 4, 0x7fff, 0xffff] {
            assert_eq!(receives.complete(counter, None), None);
        }
        assert_eq!(receives.complete(0, Some(&[])), Some((1, true)));
        let end = DataSeg::with(|s| s.lkey(INVALID_LKEY));
        receives.inbox().ring.put_segment(1, 1, end.as_bytes());
        post(&receives, 2);
        assert_eq!(receives.complete(1, Some(&[1, 2, 3])), Some((2, false)), "its list ends at once");
    }
}
