//! Virtual functions: brought by the PF's SR-IOV capability, as a kernel would.

use super::{NodeError, core::Core, dir, locks::NodeLock};
use crate::devices::MAX_VFS;
use devmodel::{host::Party, region::Patience};
use hwspec::pcie::SRIOV_CAP;
use std::sync::atomic::Ordering::*;

/// Control register of the capability, and its bits VF enable and VF memory space enable.
const CONTROL: usize = SRIOV_CAP + 0x08;
const ENABLE: u32 = 1 << 0;
const MEMORY: u32 = 1 << 3;
/// NumVFs.
const NUM_VFS: usize = SRIOV_CAP + 0x10;

/// VFs of a node if nobody says how many.
pub const DEFAULT: u8 = 8;

impl Core {
    /// Enables `vfs` VFs in place of those there are. An error: there is no room for their registers.
    pub fn set_vfs(&self, vfs: u8, lock: &NodeLock) -> Result<(), NodeError> {
        let (region, me) = (self.adapter.region(), Party(self.me.slot));
        // Whoever runs something looks at the registers of all.
        if !(0..=vfs).all(|fid| region.back_function(fid, me)) {
            return Err(dir::no_room(&self.dir, dir::ROOM_TO_CREATE));
        }
        self.switch_vfs(vfs, lock);
        Ok(())
    }

    fn switch_vfs(&self, vfs: u8, _lock: &NodeLock) {
        let now = self.now();
        self.drive(now, |runner, host| {
            let mut write = |at, value| self.adapter.config_write(runner, host, now, 0, at, 2, value);
            write(CONTROL, 0);
            write(NUM_VFS, vfs.into());
            if vfs > 0 {
                write(CONTROL, ENABLE | MEMORY);
            }
        });
        self.map.header().vfs.store(vfs.into(), Release);
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

    /// Whether any party has a VF open.
    pub fn vfs_in_use(&self) -> bool {
        (1..=MAX_VFS).any(|fid| self.openers(fid).next().is_some())
    }

    /// Resets function `fid`, and no other: see [`Adapter::reset_alone`](devmodel::Adapter::reset_alone). `None` when patience ran
    /// out: to be done again.
    pub fn reset_alone(&self, fid: u8, patience: Patience) -> Option<()> {
        let now = self.now();
        self.drive(now, |runner, host| {
            let locked = self.adapter.reset_alone(host, fid, patience);
            self.see_to_what_was_left(runner, host, now, locked)
        })
    }

    /// Resets function `fid`. The PF's reset takes its VFs away (PCI Express 9.2.1.2); they come back empty. `None` if somebody
    /// who is stopped holds it up: to be done again.
    pub fn reset_function(&self, fid: u8, lock: &NodeLock) -> Option<()> {
        let now = self.now();
        self.drive(now, |runner, host| {
            let locked = self.adapter.reset_with(host, fid, Patience::UntilStopped);
            self.see_to_what_was_left(runner, host, now, locked)
        })?;
        if fid == 0 {
            self.switch_vfs(self.map.header().vfs.load(Acquire) as u8, lock);
        }
        Some(())
    }
}
