//! The machine around the chip: flat memories with their access rights, and the interrupts that were raised.

use devmodel::host::{Abort, Bus, Iova, Move, Parties, Party, Rid, Source};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Size of a function's address space in bytes.
const SPACE: u64 = 1 << 36;
/// Unmapped bytes between two allocations, so that overruns are detected.
const GUARD: u64 = 1 << 16;

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The function that raised it.
    pub fid: u8,
    /// MSI-X vector.
    pub vector: u16,
    /// Message address.
    pub address: u64,
    /// Message data.
    pub data: u32,
}

/// An allocation, usable by the function that owns the address space.
#[derive(Clone)]
struct Block {
    bytes: Vec<u8>,
    /// The program it belongs to; `None` for memory of the machine that every party can reach.
    owner: Option<Party>,
}

/// Memory with a separate address space per function; accesses to unmapped addresses abort.
#[derive(Clone)]
pub struct Memory {
    blocks: BTreeMap<Iova, Block>,
    next: BTreeMap<u8, u64>,
    party: Party,
    /// Parties with program memory that no other party can copy.
    pub unreachable: BTreeSet<u16>,
    /// Parties that were woken for work, in order.
    pub woken: Vec<Party>,
    /// Interrupts raised, in order.
    pub interrupts: Vec<Interrupt>,
    /// Address ranges that cannot be copied from, although their owner can read them.
    pub uncopied: Vec<Range<Iova>>,
    /// Stopped parties: waiting for one never ends, so a test that does so fails.
    pub stopped: BTreeSet<u16>,
    /// Killed parties.
    pub dead: BTreeSet<u16>,
    /// The functions used by our party, if others use the rest; `None` means all.
    pub serves: Option<BTreeSet<u8>>,
    /// Functions that were left to their users, in order.
    pub left_to_users: Vec<u8>,
    /// Number of transfers by function, to check that a reset function makes none.
    pub transfers: BTreeMap<u8, u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            blocks: BTreeMap::new(),
            next: BTreeMap::new(),
            party: Party(1),
            unreachable: BTreeSet::new(),
            woken: Vec::new(),
            interrupts: Vec::new(),
            uncopied: Vec::new(),
            stopped: BTreeSet::new(),
            dead: BTreeSet::new(),
            serves: None,
            left_to_users: Vec::new(),
            transfers: BTreeMap::new(),
        }
    }
}

impl Memory {
    /// Allocates zeroed, page-aligned memory of the machine, mapped for `fid`.
    pub fn alloc(&mut self, fid: u8, len: usize) -> Iova {
        self.alloc_for(fid, len, None)
    }

    /// Like [`alloc`](Self::alloc), with memory of `owner`'s program if given.
    pub fn alloc_for(&mut self, fid: u8, len: usize, owner: Option<Party>) -> Iova {
        let next = self.next.entry(fid).or_insert((u64::from(fid) + 1) * SPACE + GUARD);
        let at = *next;
        *next = (at + len as u64 + GUARD).next_multiple_of(4096);
        self.blocks.insert(at, Block { bytes: vec![0; len.next_multiple_of(4096)], owner });
        at
    }

    /// Unmaps the allocation at `at`.
    pub fn free(&mut self, at: Iova) {
        self.blocks.remove(&at);
    }

    /// Sets the party that the runner acts for from now on.
    pub fn set_party(&mut self, party: Party) {
        self.party = party;
    }

    /// Number of bytes allocated.
    pub fn len(&self) -> usize {
        self.blocks.values().map(|b| b.bytes.len()).sum()
    }

    /// Returns true if nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    fn find(&self, at: Iova, len: usize) -> Option<(Iova, usize)> {
        let (base, block) = self.blocks.range(..=at).next_back()?;
        let offset = (at - base) as usize;
        (offset.checked_add(len)? <= block.bytes.len()).then_some((*base, offset))
    }

    /// The bytes at `at`, as seen by the program.
    pub fn get(&self, at: Iova, len: usize) -> &[u8] {
        let (base, offset) = self.find(at, len).expect("mapped memory");
        &self.blocks[&base].bytes[offset..offset + len]
    }

    /// The bytes at `at`, writable by the program.
    pub fn get_mut(&mut self, at: Iova, len: usize) -> &mut [u8] {
        let (base, offset) = self.find(at, len).expect("mapped memory");
        let block = self.blocks.get_mut(&base).expect("a block that was just found");
        &mut block.bytes[offset..offset + len]
    }

    /// Writes `bytes` to `at` as the program.
    pub fn put(&mut self, at: Iova, bytes: &[u8]) {
        self.get_mut(at, bytes.len()).copy_from_slice(bytes);
    }

    /// Finds the memory for a transfer of `rid` at `at`. Fails with `refused` if it is not allowed, or if its owner is dead.
    fn reach(&mut self, rid: Rid, at: Iova, len: usize, refused: Abort) -> Result<(Iova, usize), Abort> {
        *self.transfers.entry(rid.0).or_default() += 1;
        if at / SPACE != u64::from(rid.0) + 1 {
            return Err(refused);
        }
        let found = self.find(at, len).ok_or(refused)?;
        match self.blocks[&found.0].owner {
            Some(owner) if self.dead.contains(&owner.0) => Err(Abort::Gone),
            Some(owner) if owner != self.party && self.unreachable.contains(&owner.0) => Err(refused),
            _ => Ok(found),
        }
    }
}

impl Bus for Memory {
    fn read(&mut self, rid: Rid, at: Iova, buf: &mut [u8]) -> Result<(), Abort> {
        let (base, offset) = self.reach(rid, at, buf.len(), Abort::Source)?;
        buf.copy_from_slice(&self.blocks[&base].bytes[offset..offset + buf.len()]);
        Ok(())
    }

    fn write(&mut self, rid: Rid, at: Iova, data: &[u8]) -> Result<(), Abort> {
        let (base, offset) = self.reach(rid, at, data.len(), Abort::Destination)?;
        let block = self.blocks.get_mut(&base).ok_or(Abort::Destination)?;
        block.bytes[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn copy(&mut self, staged: &[u8], moves: &[Move]) -> Result<(), Abort> {
        for one in moves {
            if let Source::Bus(_, at) = one.src {
                let end = at + u64::from(one.len);
                if self.uncopied.iter().any(|r| at < r.end && r.start < end) {
                    return Err(Abort::Source);
                }
            }
            one.through_buffer(self, staged)?;
        }
        Ok(())
    }

    fn msix(&mut self, rid: Rid, vector: u16, address: u64, data: u32) {
        self.interrupts.push(Interrupt { fid: rid.0, vector, address, data });
    }
}

impl Parties for Memory {
    fn party(&self) -> Party {
        self.party
    }

    fn reaches(&mut self, party: Party) -> bool {
        party == self.party || !self.unreachable.contains(&party.0)
    }

    fn wake(&mut self, party: Party) {
        self.woken.push(party);
    }

    fn serves(&mut self, rid: Rid) -> bool {
        self.serves.as_ref().is_none_or(|served| served.contains(&rid.0))
    }

    fn wake_users(&mut self, rid: Rid) -> bool {
        self.left_to_users.push(rid.0);
        true
    }

    fn alive(&mut self, party: Party) -> bool {
        !self.dead.contains(&party.0)
    }

    fn relax(&mut self, holder: Party, times: u32) -> bool {
        assert!(times < 100, "waits for party {}, which does not go on", holder.0);
        self.is_stopped(holder)
    }

    fn is_stopped(&mut self, party: Party) -> bool {
        self.stopped.contains(&party.0)
    }
}
