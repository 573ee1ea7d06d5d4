//! Locks of parties that are dead.

use super::{Func, FunctionSet, Outlet, OutletRing, Region, WireRing};
use crate::host::{Host, Party};
use std::ops::Range;

impl Region {
    /// Takes all locks from `party`, which is dead; what it was at is finished or taken back. Returns the functions that were
    /// locked for that: others may have left work there meanwhile. `None` if somebody has one of them who is stopped: to be done
    /// again.
    pub fn free_locks_of(&self, host: &mut dyn Host, party: Party) -> Option<FunctionSet> {
        let held = self.free_locks_among(0..self.functions(), host, party)?;
        for which in [Outlet::Uplink, Outlet::Capture] {
            OutletRing::of(self, which).free_lock_of(host, party)?;
        }
        Some(held)
    }

    /// As [`free_locks_of`](Self::free_locks_of), of some functions alone.
    pub fn free_locks_among(
        &self,
        fids: Range<u8>,
        host: &mut dyn Host,
        party: Party,
    ) -> Option<FunctionSet> {
        let mut held = 0;
        for fid in fids.start..fids.end.min(self.functions()) {
            if self.function_lock(fid).is_of(party) {
                drop(Func::lock_from_dead(self, fid, host)?);
                held |= 1 << fid;
            }
            self.function_lock(fid).free_of(host, party, || {})?;
            self.ring_lock(fid).free_of(host, party, || WireRing::of(self, fid).recount())?;
        }
        Some(held)
    }
}
