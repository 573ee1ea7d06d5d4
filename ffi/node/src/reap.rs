//! What becomes of the dead: whoever notices takes apart what they had.

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
    /// Cleans up after all parties that died. Returns how many there were; those that somebody who is stopped holds up are left for
    /// later.
    pub fn reap(&self) -> Result<usize, NodeError> {
        let lock = self.locks.lock()?;
        Ok(self.reap_locked(&lock))
    }

    /// See [`reap`](Self::reap).
    pub fn reap_locked(&self, lock: &NodeLock) -> usize {
        let others = self.map.header().taken.iter().filter(|slot| *slot != self.me.slot);
        let dead: Vec<u16> = others.filter(|slot| !party::lives(&self.map, self.locks, *slot)).collect();
        let buried = dead.iter().filter(|slot| self.bury(**slot, lock).is_some()).count();
        self.complete_vfs(lock);
        buried
    }

    /// Ends all that `slot` had. May be done again by the next if we die at it, or if it returns `None`: somebody who is stopped
    /// holds what it needs, and all others wait for the node's lock meanwhile.
    fn bury(&self, slot: u16, lock: &NodeLock) -> Option<()> {
        let now = self.now();
        let opened = (0..FUNCTIONS as u8).filter(|fid| self.has_open(slot, *fid));
        let opened: FunctionSet = opened.fold(0, |set, fid| set | 1 << fid);
        self.drive(now, |runner, host| {
            // What they were at is finished or taken back.
            let repaired = self.adapter.region().free_locks_of(host, Party(slot));
            let locked = repaired.and_then(|repaired| {
                let (_, reaped) = self.adapter.reap(host, Party(slot), opened)?;
                Some(repaired | reaped)
            });
            self.see_to_what_was_left(runner, host, now, locked)
        })?;
        for fid in bits(opened) {
            self.strike_out(slot, fid, lock)?;
            // A driver that finds no event looks at what the dead held.
            self.fire_all(fid);
        }
        // When that was done, and this was not, it is done now.
        self.reset_unused_pf(lock)?;
        self.reap_outlets(slot, lock);
        Arena::new(&self.map, lock).free_all(Owner::Party(slot));
        self.map.header().reaped.fetch_add(1, Relaxed);
        self.map.header().taken.remove(slot);
        Some(())
    }

    /// Takes `slot` out of the openers of `fid`. After the last one the function is reset and its memory freed. `None` if somebody
    /// who is stopped holds it up: `slot` is still an opener then, until it is cleaned up after; or the PF, which nobody uses, is left
    /// to whoever closes or cleans up next.
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
            // Whoever does this reaches the client's memory as little as the client itself now does.
            self.reset_alone(fid, Patience::UntilStopped).ok()?;
            function.server.store(0, Release);
            if self.map.functions().iter().all(|function| function.server.load(Acquire) == 0) {
                self.map.header().by_value.fetch_and(!SERVED, AcqRel);
            }
        } else if !others && fid != 0 {
            self.clear(fid, lock)?;
        }
        // Last, so that who comes after a death here does all of it again.
        function.openers.remove(slot);
        self.map.party(slot).functions[usize::from(fid) / 64 % 2].fetch_and(!(1 << (fid % 64)), AcqRel);
        Some(())
    }

    /// Resetting the PF would end its VFs: it is left as it is, for the next to take over, until nobody uses any. `None` if somebody
    /// who is stopped holds it up: to be done again.
    fn reset_unused_pf(&self, lock: &NodeLock) -> Option<()> {
        let is_used = |fid| self.openers(fid).next().is_some();
        if self.map.functions()[0].shared.load(Acquire) == 0 || (0..FUNCTIONS as u8).any(is_used) {
            return Some(());
        }
        self.clear(0, lock)
    }

    /// Resets a function that nobody has open and frees its memory.
    fn clear(&self, fid: u8, lock: &NodeLock) -> Option<()> {
        self.reset_function(fid, lock).ok()?;
        Arena::new(&self.map, lock).free_all(Owner::Function(fid));
        let function = &self.map.functions()[usize::from(fid)];
        function.shared.store(0, Release);
        Some(())
    }
}
