//! The conductor's view of memory: completions and interrupts are kept until programs can see them.

use crate::host::NodeHost;
use devmodel::host::{Abort, Host, Iova, Move, Party, Rid};

/// Bytes of a completion or an event at least; results of atomics are shorter.
const ENTRY: usize = 64;

/// The writes of a step, in their order.
pub enum Written {
    /// So many bytes of data, which are in memory.
    Data(u32),
    /// An entry of a queue, which is not in memory yet.
    Entry(Rid, Iova, Vec<u8>),
    /// A vector, which was not raised yet.
    Interrupt(Rid, u16),
}

/// See the [module](self).
pub struct Late<'h, 'm> {
    pub host: &'h mut NodeHost<'m>,
    pub written: &'h mut Vec<Written>,
}

impl Host for Late<'_, '_> {
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        self.host.read(rid, at, buf)
    }
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        if data.len() >= ENTRY {
            self.written.push(Written::Entry(rid, at, data.to_vec()));
            return Ok(());
        }
        self.written.push(Written::Data(data.len() as u32));
        self.host.write(rid, at, data)
    }
    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        // Data of a packet goes to memory at once, whatever pages it is for.
        self.written.push(Written::Data(moves.iter().map(|one| one.len).sum()));
        self.host.copy(staged, moves)
    }
    fn msix(&mut self, rid: Rid, vector: u16, _: u64, _: u32) {
        self.written.push(Written::Interrupt(rid, vector));
    }
    fn party(&self) -> Party {
        self.host.party()
    }
    fn steady(&self) -> Option<Party> {
        self.host.steady()
    }
    fn barrier(&mut self) {
        self.host.barrier();
    }
    fn reaches(&mut self, party: Party) -> bool {
        self.host.reaches(party)
    }
    fn by_reference(&mut self, from: Rid, to: Rid) -> bool {
        self.host.by_reference(from, to)
    }
    fn uplink_waits(&mut self) {
        self.host.uplink_waits();
    }
    fn capture_waits(&mut self) {
        self.host.capture_waits();
    }
    fn wake(&mut self, party: Party) {
        self.host.wake(party);
    }
    fn uses(&mut self, _: Rid) -> bool {
        // The conductor runs all functions.
        true
    }
    fn alive(&mut self, party: Party) -> bool {
        self.host.alive(party)
    }
    fn relax(&mut self, holder: Party, times: u32) -> bool {
        self.host.relax(holder, times)
    }
    fn is_stopped(&mut self, party: Party) -> bool {
        self.host.is_stopped(party)
    }
    fn has_stopped_user(&mut self, rid: Rid) -> bool {
        self.host.has_stopped_user(rid)
    }
}
