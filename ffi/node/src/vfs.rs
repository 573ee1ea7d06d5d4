//! Virtual functions: brought by the PF's SR-IOV capability, as a kernel would.

use super::{NodeError, core::Core, holder::Holder, host::NodeHost, locks::NodeLock, room};
use crate::devices::MAX_VFS;
use devmodel::{
    host::Party,
    region::{FunctionSet, Patience},
};
use std::sync::atomic::Ordering::*;

/// VFs of a node if nobody says how many.
pub const DEFAULT: u8 = 8;

impl Core {
    /// Enables `vfs` VFs in place of those there are. An error: there is no room for their registers, or a program that is
    /// stopped holds one of them or the PF; then the VFs are those that there were.
    pub fn set_vfs(&self, vfs: u8, _lock: &NodeLock) -> Result<(), NodeError> {
        let (region, me) = (self.adapter.region(), Party(self.me.slot));
        // Whoever runs something looks at the registers of all.
        if !(0..=vfs).all(|fid| region.back_function(fid, me)) {
            return Err(room::no_room(&self.dir, room::ROOM_TO_CREATE));
        }
        self.unless_stopped(|host| self.adapter.replace_vfs(host, vfs, Patience::UntilStopped)).map_err(
            |holder| NodeError::Stopped { what: format!("changing the virtual functions to {vfs}"), holder },
        )?;
        self.map.header().vfs.store(vfs.into(), Release);
        Ok(())
    }

    /// Does what locks functions, and returns those locked, or `None` when a program that is stopped has one of them: that program.
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

    /// Sees to it that there are as many VFs as asked for.
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
            return refuse("reset the node to have fewer");
        }
        // The number is fixed while VFs are enabled (SR-IOV 9.3.3.7), so they go and come again.
        if self.vfs_in_use() {
            return refuse("some are in use; wait until their programs end");
        }
        self.set_vfs(asked, lock)
    }

    /// Brings back the VFs of a program that was killed while it changed their number. What somebody who is stopped holds up is left
    /// to whoever comes next; and whoever has the PF, a guest it is served to for one, may be changing them just now.
    pub fn complete_vfs(&self, lock: &NodeLock) {
        let is_at_it = || self.openers(0).next().is_some() || self.vfs_in_use();
        if self.adapter.has_half_changed_vfs() && !is_at_it() {
            let vfs = self.map.header().vfs.load(Acquire) as u8;
            if let Err(error) = self.set_vfs(vfs.min(MAX_VFS), lock) {
                tracing::warn!(%error, "the virtual functions are not complete");
            }
        }
    }

    /// Whether any party has a VF open.
    pub fn vfs_in_use(&self) -> bool {
        (1..=MAX_VFS).any(|fid| self.openers(fid).next().is_some())
    }

    /// Resets function `fid`, and no other: see [`Adapter::reset_alone`](devmodel::Adapter::reset_alone). An error: the program
    /// that patience with ran out; to be done again.
    pub fn reset_alone(&self, fid: u8, patience: Patience) -> Result<(), Holder> {
        self.unless_stopped(|host| self.adapter.reset_alone(host, fid, patience))
    }

    /// Resets function `fid`. The PF's reset takes its VFs away (PCI Express 9.2.1.2), and they come back empty: here they are
    /// reset where they are, so that they are never missing, whoever holds this up. An error: the program that is stopped and does;
    /// to be done again.
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
