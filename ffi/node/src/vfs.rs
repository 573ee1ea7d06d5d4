//! Virtual functions, enabled through the PF's SR-IOV capability as a kernel would do it.

use super::{NodeError, core::Core, holder::Holder, host::NodeHost, locks::NodeLock, room};
use crate::devices::MAX_VFS;
use devmodel::{
    host::Party,
    region::{FunctionSet, Patience},
};
use std::sync::atomic::Ordering::*;

/// Default number of VFs of a new node.
pub const DEFAULT: u8 = 8;

impl Core {
    /// Replaces the VFs by `vfs` new ones. Fails and leaves the VFs as they were if there is no room for their registers, or if a stopped
    /// program holds one of them or the PF.
    pub fn set_vfs(&self, vfs: u8, _lock: &NodeLock) -> Result<(), NodeError> {
        let (region, me) = (self.adapter.region(), Party(self.me.slot));
        // Every runner reads the registers of all functions.
        if !(0..=vfs).all(|fid| region.back_function(fid, me)) {
            return Err(room::no_room(&self.dir, room::ROOM_TO_CREATE));
        }
        self.unless_stopped(|host| self.adapter.replace_vfs(host, vfs, Patience::UntilStopped)).map_err(
            |holder| NodeError::Stopped { what: format!("changing the virtual functions to {vfs}"), holder },
        )?;
        self.map.header().vfs.store(vfs.into(), Release);
        Ok(())
    }

    /// Runs `act`, which locks functions and returns its result, or `None` if a stopped program holds one of them. The error is that
    /// program.
    fn unless_stopped(
        &self,
        act: impl FnOnce(&mut NodeHost<'_>) -> Option<FunctionSet>,
    ) -> Result<(), Holder> {
        let now = self.now();
        self.drive(now, |runner, host| {
            let locked = act(host);
            let stopped = host.0.scratch.waits.last_stopped();
            let done = self.see_to_what_was_left(runner, host, now, locked);
            done.ok_or_else(|| Holder::of(stopped.map_or(0, |party| self.pid(party.0))))
        })
    }

    /// Changes the node's number of VFs to the requested one.
    pub fn want_vfs(&self, asked: u8, lock: &NodeLock) -> Result<(), NodeError> {
        let have = self.map.header().vfs.load(Acquire) as u8;
        if asked == have {
            return Ok(());
        }
        let refuse = |remedy| Err(NodeError::Vfs { have, asked, remedy });
        if asked > MAX_VFS {
            return refuse("the adapter has 127 at most");
        }
        if asked < have {
            return refuse("delete the adapter to have fewer");
        }
        // The number is fixed while VFs are enabled (SR-IOV 9.3.3.7), so all VFs are disabled and enabled again.
        if self.vfs_in_use() {
            return refuse("some are in use; wait until their programs end");
        }
        self.set_vfs(asked, lock)
    }

    /// Restores the VFs after a program was killed while it changed their number. If a stopped program holds one, leaves it to the next
    /// party. Does nothing while the PF or a VF is open, because its opener, or the guest it is served to, may be changing them.
    pub fn complete_vfs(&self, lock: &NodeLock) {
        let is_at_it = || self.openers(0).next().is_some() || self.vfs_in_use();
        if self.adapter.has_half_changed_vfs() && !is_at_it() {
            let vfs = self.map.header().vfs.load(Acquire) as u8;
            if let Err(error) = self.set_vfs(vfs.min(MAX_VFS), lock) {
                tracing::warn!(%error, "the virtual functions are not complete");
            }
        }
    }

    /// True if any party has a VF open.
    pub fn vfs_in_use(&self) -> bool {
        (1..=MAX_VFS).any(|fid| self.openers(fid).next().is_some())
    }

    /// Resets function `fid` only ([`Adapter::reset_alone`](devmodel::Adapter::reset_alone)). Fails with the stopped program when patience
    /// runs out; the reset must then be repeated.
    pub fn reset_alone(&self, fid: u8, patience: Patience) -> Result<(), Holder> {
        self.unless_stopped(|host| self.adapter.reset_alone(host, fid, patience))
    }

    /// Resets function `fid`. A reset of the PF removes its VFs (PCI Express 9.2.1.2), which come back empty. Here they are reset in place,
    /// so that they are never missing, even if a program holds this up. Fails with the stopped program that does; the reset must then be
    /// repeated.
    pub fn reset_function(&self, fid: u8, _lock: &NodeLock) -> Result<(), Holder> {
        let vfs = if fid == 0 { self.map.header().vfs.load(Acquire) as u8 } else { 0 };
        self.unless_stopped(|host| {
            let vfs = (1..=vfs.min(MAX_VFS)).try_fold(0, |locked, vf| {
                Some(locked | self.adapter.reset_with(host, vf, Patience::UntilStopped)?)
            })?;
            Some(vfs | self.adapter.reset_alone(host, fid, Patience::UntilStopped)?)
        })
    }
}
