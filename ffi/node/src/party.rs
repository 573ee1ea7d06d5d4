//! Parties: the programs on a node, and their liveness.

use super::{
    NodeError,
    file::{Mapped, PAGE, PartySlot},
    locks::{LockFile, NodeLock},
    party_set::PARTY_BITS,
    room, sys,
};
use std::{
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::*},
    },
};

/// A random number that other processes read from this one's memory to find out whether they can access it.
static PROBE: AtomicU64 = AtomicU64::new(0);

/// Identifies this process on the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: u32,
    namespace: u64,
    started: u64,
}

impl Identity {
    fn ours() -> Self {
        static OURS: OnceLock<Identity> = OnceLock::new();
        let read = || {
            let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
            // Field 22, counted from the end of the name, which may contain any characters.
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            Self {
                pid: std::process::id(),
                namespace: std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino()),
                started: rest.split_whitespace().nth(19).and_then(|f| f.parse().ok()).unwrap_or(0),
            }
        };
        let known = *OURS.get_or_init(read);
        // A forked child has its own identity.
        if known.pid == std::process::id() { known } else { read() }
    }

    fn of(slot: &PartySlot) -> Self {
        Self {
            pid: slot.pid.load(Acquire),
            namespace: slot.pid_namespace.load(Acquire),
            started: slot.started.load(Acquire),
        }
    }
}

/// This process's slot among the parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Me {
    /// Slot number, from 1.
    pub slot: u16,
    /// How often the slot was taken, including by this process.
    pub generation: u32,
}

impl Me {
    /// Takes a free slot. Cleaning up after dead parties needs a slot, so the caller does that afterwards, and then checks that no more
    /// than [`PROGRAMS`](super::party_set::PROGRAMS) remain.
    pub fn claim(
        dir: &Path,
        map: &Mapped,
        locks: &'static LockFile,
        _lock: &NodeLock,
    ) -> Result<Self, NodeError> {
        let taken = &map.header().taken;
        for slot in taken.free() {
            if !locks.begin_life(slot)? {
                continue;
            }
            if !map.back_party(slot) {
                locks.end_life(slot);
                return Err(room::no_room(dir, PAGE as u64));
            }
            let place = map.party(slot);
            let generation = (place.generation.load(Relaxed).wrapping_add(1) & GENERATIONS).max(1);
            let us = Identity::ours();
            let probe = PROBE.as_ptr() as u64;
            let random =
                std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), (us.pid, us.started));
            let _ = PROBE.compare_exchange(0, random | 1, AcqRel, Acquire);
            place.generation.store(generation, Relaxed);
            place.pid.store(us.pid, Relaxed);
            place.pid_namespace.store(us.namespace, Relaxed);
            place.started.store(us.started, Relaxed);
            place.probe.store(probe, Relaxed);
            place.token.store(PROBE.load(Acquire), Relaxed);
            place.bell.reset();
            place.deadline.store(0, Relaxed);
            place.wakes.store(0, Relaxed);
            place.ticks.store(0, Relaxed);
            place.functions.iter().for_each(|word| word.store(0, Relaxed));
            place.by_address.store(0, Relaxed);
            map.life(slot).store(0, Relaxed);
            taken.insert(slot);
            return Ok(Self { slot, generation });
        }
        Err(NodeError::Full)
    }

    /// The opener ID of this process. It is not reused.
    pub fn opener(self) -> u32 {
        opener(self.slot, self.generation)
    }
}

/// Number of generations that opener IDs distinguish.
const GENERATIONS: u32 = u32::MAX >> PARTY_BITS;

/// Builds an opener ID.
pub fn opener(slot: u16, generation: u32) -> u32 {
    generation << PARTY_BITS | u32::from(slot)
}

/// The party in an opener ID.
pub fn party_of(opener: u32) -> u16 {
    (opener & !(u32::MAX << PARTY_BITS)) as u16
}

/// True if the opener with this ID is on the node: its party is alive, and its slot was not reused.
pub fn is_there(map: &Mapped, locks: &'static LockFile, id: u32) -> bool {
    let slot = party_of(id);
    map.header().taken.has(slot)
        && opener(slot, map.party(slot).generation.load(Acquire)) == id
        && lives(map, locks, slot)
}

/// True if the party in `slot` is alive; false for a free slot.
pub fn lives(map: &Mapped, locks: &'static LockFile, slot: u16) -> bool {
    if slot == 0 || !map.header().taken.has(slot) {
        return false;
    }
    // Record locks do not report those of this process, including those of another copy of this library in it.
    locks.holder(slot).is_some() || Identity::of(map.party(slot)) == Identity::ours()
}

/// Returns the process in `slot`, which the kernel reports as the holder of its lock: so the node's memory cannot make this process access
/// one that is not on the node. `Some(None)` if its memory cannot be copied to and from, `None` if it is dead or dying.
pub fn probe(map: &Mapped, locks: &'static LockFile, slot: u16) -> Option<Option<u32>> {
    let place = map.party(slot);
    let pid = match locks.holder(slot) {
        Some(0) => return Some(None),
        Some(pid) => pid,
        // Record locks do not report those of this process, including those of another copy of this library in it.
        None if Identity::of(place) == Identity::ours() => std::process::id(),
        None => return None,
    };
    match sys::peek(pid, place.probe.load(Acquire)) {
        Ok(word) => Some((word == place.token.load(Acquire)).then_some(pid)),
        // A process loses its memory before its locks.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => None,
        Err(_) => Some(None),
    }
}
