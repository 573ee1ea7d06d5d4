//! The conductor's view of memory: completions and interrupts are held back until programs can see them.

use crate::host::NodeHost;
use devmodel::{
    host::{Abort, Bus, Iova, Move, Parties, Party, Rid, forward},
    region::Outlet,
};

/// Minimum size of a completion or an event; results of atomics are shorter.
const ENTRY: usize = 64;

/// A write of a step, in order.
pub enum Written {
    /// Number of bytes of data that are already in memory.
    Data(u32),
    /// A queue entry that is not in memory yet.
    Entry(Rid, Iova, Vec<u8>),
    /// A vector that was not raised yet.
    Interrupt(Rid, u16),
}

/// A host that holds back completions and interrupts, as described in the [module](self).
pub struct Late<'h, 'm> {
    pub host: &'h mut NodeHost<'m>,
    pub written: &'h mut Vec<Written>,
}

#[deny(clippy::missing_trait_methods)]
impl Bus for Late<'_, '_> {
    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        if data.len() >= ENTRY {
            self.written.push(Written::Entry(rid, at, data.to_vec()));
            return Ok(());
        }
        self.written.push(Written::Data(data.len() as u32));
        self.host.write(rid, at, data)
    }
    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        // Data of packets goes to memory at once.
        self.written.push(Written::Data(moves.iter().map(|one| one.len).sum()));
        self.host.copy(staged, moves)
    }
    fn msix(&mut self, rid: Rid, vector: u16, _: u64, _: u32) {
        self.written.push(Written::Interrupt(rid, vector));
    }
    forward! { self.host:
        fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort>;
    }
}

#[deny(clippy::missing_trait_methods)]
impl Parties for Late<'_, '_> {
    // The conductor alone runs the functions.
    fn serves(&mut self, _: Rid) -> bool {
        true
    }
    fn is_polled(&mut self, _: Rid) -> bool {
        false
    }
    fn polls_itself(&mut self, _: Rid) -> bool {
        false
    }
    fn exclusive_runner(&mut self, _: Rid) -> Option<Party> {
        None
    }
    fn wake_users(&mut self, _: Rid) -> bool {
        false
    }
    forward! { self.host:
        fn party(&self) -> Party;
        fn steady(&self) -> Option<Party>;
        fn barrier(&mut self);
        fn reaches(&mut self, party: Party) -> bool;
        fn by_reference(&mut self, from: Rid, to: Rid) -> bool;
        fn room_beside(&mut self, mac: [u8; 6]) -> Option<usize>;
        fn deliver_beside(&mut self, headers: &[u8], payload: &[u8]) -> bool;
        fn outlet_waits(&mut self, outlet: Outlet);
        fn wake(&mut self, party: Party);
        fn alive(&mut self, party: Party) -> bool;
        fn relax(&mut self, holder: Party, times: u32) -> bool;
        fn is_stopped(&mut self, party: Party) -> bool;
        fn has_stopped_user(&mut self, rid: Rid) -> bool;
        fn entropy(&mut self) -> [u64; 2];
    }
}
