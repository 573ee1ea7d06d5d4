//! Cleans up after dead parties, in the party that notices a death.

use super::{
    NodeError,
    arena::{Arena, Owner},
    core::Core,
    file::{FUNCTIONS, SERVED},
    locks::NodeLock,
    party,
    scratch::bits,
};
use devmodel::{
    host::Party,
    region::{FunctionSet, Patience},
};
use std::sync::atomic::Ordering::*;

impl Core {
    /// Cleans up after all dead parties, and returns their number. Those with objects that a stopped program holds are left for later.
    pub fn reap(&self) -> Result<usize, NodeError> {
        let lock = self.locks.lock()?;
        Ok(self.reap_locked(&lock))
    }

    /// [`reap`](Self::reap) with the lock held.
    pub fn reap_locked(&self, lock: &NodeLock) -> usize {
        let others = self.map.header().taken.iter().filter(|slot| *slot != self.me.slot);
        let dead: Vec<u16> = others.filter(|slot| !party::lives(&self.map, self.locks, *slot)).collect();
        let buried = dead.iter().filter(|slot| self.bury(**slot, lock).is_some()).count();
        self.complete_vfs(lock);
        buried
    }

    /// Destroys everything that belongs to `slot`. Can be repeated: by the next party if this one dies here; or later if it returned `None`
    /// because a stopped program holds something it needs, since others are waiting for the node's lock.
    fn bury(&self, slot: u16, lock: &NodeLock) -> Option<()> {
        let now = self.now();
        let opened = (0..FUNCTIONS as u8).filter(|fid| self.has_open(slot, *fid));
        let opened: FunctionSet = opened.fold(0, |set, fid| set | 1 << fid);
        self.drive(now, |runner, host| {
            // Finishes or rolls back unfinished jobs.
            let repaired = self.adapter.region().free_locks_of(host, Party(slot));
            let locked = repaired.and_then(|repaired| {
                let (_, reaped) = self.adapter.reap(host, Party(slot), opened)?;
                Some(repaired | reaped)
            });
            self.see_to_what_was_left(runner, host, now, locked)
        })?;
        for fid in bits(opened) {
            self.strike_out(slot, fid, lock)?;
            // A driver that is woken without an event checks what dead openers held.
            self.fire_all(fid);
        }
        // Makes up for an earlier party that died between these two steps.
        self.reset_unused_pf(lock)?;
        self.reap_outlets(slot, lock);
        Arena::new(&self.map, lock).free_all(Owner::Party(slot));
        self.map.header().reaped.fetch_add(1, Relaxed);
        self.map.header().taken.remove(slot);
        Some(())
    }

    /// Removes `slot` from the openers of `fid`. After the last opener, resets the function and frees its memory. Returns `None` if a
    /// stopped program prevents that. Then `slot` remains an opener until it is cleaned up after, or the unused PF is left to the next
    /// party that closes or cleans up.
    pub fn strike(&self, slot: u16, fid: u8, lock: &NodeLock) -> Option<()> {
        self.strike_out(slot, fid, lock)?;
        self.reset_unused_pf(lock)
    }

    fn strike_out(&self, slot: u16, fid: u8, lock: &NodeLock) -> Option<()> {
        let function = &self.map.functions()[usize::from(fid)];
        self.leave_vectors(slot, fid, lock);
        let _ = function.poller.compare_exchange(slot.into(), 0, AcqRel, Relaxed);
        let others = self.openers(fid).any(|other| other != slot);
        if function.server.load(Acquire) == u32::from(slot) {
            // Afterwards this party can no more access the client's memory than the client itself can.
            self.reset_alone(fid, Patience::UntilStopped).ok()?;
            function.server.store(0, Release);
            if self.map.functions().iter().all(|function| function.server.load(Acquire) == 0) {
                self.map.header().by_value.fetch_and(!SERVED, AcqRel);
            }
        } else if !others && fid != 0 {
            self.clear(fid, lock)?;
        }
        // Done last, so that a party that cleans up after this one repeats all of it.
        function.openers.remove(slot);
        self.map.party(slot).functions[usize::from(fid) / 64 % 2].fetch_and(!(1 << (fid % 64)), AcqRel);
        Some(())
    }

    /// Resets the PF once no VF is in use. A reset of the PF would also reset its VFs, so until then it is left as it is for its next
    /// opener. Returns `None` if a stopped program prevents the reset.
    fn reset_unused_pf(&self, lock: &NodeLock) -> Option<()> {
        let is_used = |fid| self.openers(fid).next().is_some();
        if self.map.functions()[0].shared.load(Acquire) == 0 || (0..FUNCTIONS as u8).any(is_used) {
            return Some(());
        }
        self.clear(0, lock)
    }

    /// Resets a function without openers and frees its memory.
    fn clear(&self, fid: u8, lock: &NodeLock) -> Option<()> {
        self.reset_function(fid, lock).ok()?;
        Arena::new(&self.map, lock).free_all(Owner::Function(fid));
        let function = &self.map.functions()[usize::from(fid)];
        function.shared.store(0, Release);
        Some(())
    }
}
