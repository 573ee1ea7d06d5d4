//! A bus that refuses what a function wants.

use crate::host::{Abort, Host, Iova, Move, Party, Rid};

/// A host whose bus refuses all transfers.
pub(crate) struct Refusing<'h>(pub &'h mut dyn Host);

impl Host for Refusing<'_> {
    fn read(&mut self, _: Rid, _: Iova, _: &mut [u8]) -> Result<(), Abort> {
        Err(Abort::Source)
    }
    fn write(&mut self, _: Rid, _: Iova, _: &[u8]) -> Result<(), Abort> {
        Err(Abort::Destination)
    }
    fn copy(&mut self, _: &[u8], _: &[Move]) -> Result<(), Abort> {
        Err(Abort::Destination)
    }
    // Interrupts are writes.
    fn msix(&mut self, _: Rid, _: u16, _: u64, _: u32) {}
    fn party(&self) -> Party {
        self.0.party()
    }
    fn reaches(&mut self, party: Party) -> bool {
        self.0.reaches(party)
    }
    fn wake(&mut self, party: Party) {
        self.0.wake(party);
    }
    fn uses(&mut self, rid: Rid) -> bool {
        self.0.uses(rid)
    }
    fn alive(&mut self, party: Party) -> bool {
        self.0.alive(party)
    }
    fn relax(&mut self, holder: Party, times: u32) -> bool {
        self.0.relax(holder, times)
    }
    fn is_stopped(&mut self, party: Party) -> bool {
        self.0.is_stopped(party)
    }
    fn has_stopped_user(&mut self, rid: Rid) -> bool {
        self.0.has_stopped_user(rid)
    }
}
