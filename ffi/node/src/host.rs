//! The model's view of this process: memory that it can access, interrupts that it can raise, parties that it can wake.

use super::{
    file::{SERVED, UNREACHED},
    memory::Memory,
    party,
    party_set::PARTIES,
    sys,
};
use devmodel::{
    host::{Abort, Bus, Iova, Move, Parties, Party, Rid, forward},
    region::Outlet,
};
use std::sync::atomic::Ordering::*;

/// One runner's view of the node.
pub struct NodeHost<'a>(pub(super) Memory<'a>);

impl Bus for NodeHost<'_> {
    forward! { self.0:
        fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort>;
        fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort>;
        fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort>;
    }

    fn msix(&mut self, rid: Rid, vector: u16, _address: u64, data: u32) {
        let core = self.0.core;
        if let Some(guest) = core.guest(rid.0) {
            return guest.irqs.raise(vector, data);
        }
        core.fire(rid.0, vector);
    }
}

impl Parties for NodeHost<'_> {
    #[inline]
    fn party(&self) -> Party {
        Party(self.0.core.me.slot)
    }

    #[inline]
    fn steady(&self) -> Option<Party> {
        self.0.scratch.steady.then(|| self.party())
    }

    #[cold]
    fn barrier(&mut self) {
        if !sys::barrier_everywhere() {
            // The program may be forbidden to make the call. A store becomes visible to all processors in far less than the time slept.
            clock::sleep(sync::barrier::DRAINED);
        }
    }

    #[inline]
    fn reaches(&mut self, party: Party) -> bool {
        usize::from(party.0) < PARTIES && self.0.core.reaches(party.0)
    }

    #[inline]
    fn by_reference(&mut self, from: Rid, to: Rid) -> bool {
        let (core, by_value) = (self.0.core, self.0.core.map.header().by_value.load(Relaxed));
        by_value == 0
            // Only the process that serves a guest knows the guest's memory, and only that process runs the guest's functions.
            || (by_value & SERVED == 0 || core.server(from.0) == core.server(to.0))
                && (by_value & UNREACHED == 0 || core.is_read_by_all(from.0))
    }

    #[inline]
    fn is_polled(&mut self, rid: Rid) -> bool {
        let Some(function) = self.0.core.map.functions().get(usize::from(rid.0)) else { return false };
        let poller = function.poller.load(Relaxed);
        let polled = poller != 0 && poller != u32::from(self.0.core.me.slot);
        if polled {
            self.0.scratch.entrusted.note(rid.0);
        }
        polled
    }

    #[inline]
    fn exclusive_runner(&mut self, rid: Rid) -> Option<Party> {
        let server = self.0.core.server(rid.0);
        (server != 0 && server != u32::from(self.0.core.me.slot)).then_some(Party(server as u16))
    }
    #[inline]
    fn polls_itself(&mut self, rid: Rid) -> bool {
        self.0.core.is_poller(rid.0)
    }

    fn room_beside(&mut self, mac: [u8; 6]) -> Option<usize> {
        self.0.core.room_beside(mac)
    }

    fn deliver_beside(&mut self, headers: &[u8], payload: &[u8]) -> bool {
        let due = self.0.core.deliver_beside(headers, payload);
        self.0.scratch.due_beside |= due.unwrap_or_default();
        due.is_some()
    }

    #[inline]
    fn outlet_waits(&mut self, outlet: Outlet) {
        if outlet != Outlet::Uplink || !self.0.scratch.quiet {
            self.0.core.outlet_filled(outlet);
        }
    }

    fn wake(&mut self, party: Party) {
        // Only a taken slot has memory.
        if self.0.core.map.header().taken.has(party.0) {
            self.0.core.wake(party.0);
        }
    }

    fn alive(&mut self, party: Party) -> bool {
        let core = self.0.core;
        let slot = party.0;
        if slot == core.me.slot {
            return true;
        }
        let lives = party::lives(&core.map, core.locks, slot);
        if !lives {
            self.0.scratch.suspect = slot;
        }
        lives
    }

    fn relax(&mut self, holder: Party, times: u32) -> bool {
        let Memory { core, scratch } = &mut self.0;
        core.wait_for(&mut scratch.waits, holder, times)
    }

    fn is_stopped(&mut self, party: Party) -> bool {
        self.0.core.is_stopped(&self.0.scratch.waits, party)
    }

    fn has_stopped_user(&mut self, rid: Rid) -> bool {
        self.0.core.has_stopped_opener(&self.0.scratch.waits, rid.0)
    }

    #[inline]
    fn serves(&mut self, rid: Rid) -> bool {
        self.0.core.opens(rid.0).load(Relaxed) != 0
    }

    fn wake_users(&mut self, rid: Rid) -> bool {
        let core = self.0.core;
        core.openers(rid.0).inspect(|slot| core.wake(*slot)).count() != 0
    }
}
