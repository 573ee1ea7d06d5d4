//! Recovery of locks held by dead parties.

use super::{Func, FunctionSet, Outlet, OutletRing, Region, WireRing};
use crate::host::{Host, Party};
use std::ops::Range;

impl Region {
    /// Takes all locks from `party`, which is dead, and completes or rolls back its jobs. Returns the functions that it locked to do so:
    /// other parties may have left work there in the meantime. `None` if a stopped process holds one of the locks; call again later.
    pub fn free_locks_of(&self, host: &mut dyn Host, party: Party) -> Option<FunctionSet> {
        let held = self.free_locks_among(0..self.functions(), host, party)?;
        for which in [Outlet::Uplink, Outlet::Capture] {
            OutletRing::of(self, which).free_lock_of(host, party)?;
        }
        Some(held)
    }

    /// Like [`free_locks_of`](Self::free_locks_of), for some functions only.
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
