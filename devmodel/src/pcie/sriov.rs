//! Single-root I/O virtualization: the PF's capability, and creation and removal of VFs (PCI Express Base 5.0, 9.3.3).

use super::{config_space::set_dword, reset};
use crate::{
    Adapter,
    host::Host,
    identity::BAR0_SIZE,
    region::{Func, FunctionSet, Patience, Sync},
    state::FunctionRow,
};
use hwspec::pcie::{NUM_VFS, SRIOV_CAP, SRIOV_CONTROL as CONTROL, VF_ENABLE, VF_MSE};
use std::{ops::Range, sync::atomic::Ordering::Release};

/// System page size.
const PAGE_SIZE: usize = SRIOV_CAP + 0x20;
/// VF BAR0, low half.
const VF_BAR0: usize = SRIOV_CAP + 0x24;
/// Control: ARI capable hierarchy.
const ARI: u32 = 1 << 4;

/// Bits that software can write in the capability's dword at `at`. NumVFs is fixed while VFs are enabled.
pub(crate) fn writable(vfs_enabled: bool, at: usize) -> u32 {
    match at {
        CONTROL => VF_ENABLE | VF_MSE | ARI,
        NUM_VFS if !vfs_enabled => 0xffff,
        PAGE_SIZE if !vfs_enabled => u32::MAX,
        VF_BAR0 => !(BAR0_SIZE as u32 - 1),
        x if x == VF_BAR0 + 4 => u32::MAX,
        _ => 0,
    }
}

/// True if VF enable is set.
pub(super) fn enabled(pf: &Func<'_>) -> bool {
    pf.function().config_dword(CONTROL) & VF_ENABLE != 0
}

impl Adapter {
    /// Acts on a write that changed the capability's dword at `at`. Returns the functions that were locked meanwhile.
    pub(super) fn sriov_written(
        &self,
        host: &mut dyn Host,
        at: usize,
        before: u32,
        after: u32,
    ) -> FunctionSet {
        if at != CONTROL || before == after {
            return 0;
        }
        let num_vfs = {
            let pf = Func::lock(self.region(), 0, host);
            pf.function().config_dword(NUM_VFS) & 0xffff
        };
        let last = num_vfs.min(u32::from(self.region().functions() - 1)) as u8;
        let memory_off = if after & VF_MSE == 0 { FunctionRow::VF_MEMORY_OFF } else { 0 };
        let all = (1..=last).fold(1, |set, vf| set | 1 << vf);
        match (before & VF_ENABLE != 0, after & VF_ENABLE != 0) {
            (false, true) => (1..=last).for_each(|vf| {
                let mut func = Func::lock(self.region(), vf, host);
                reset::defaults(&mut func, self.config());
                *func.function_mut(|f| &mut f.pci_command) = memory_off;
                func.commit(host);
                self.bring_vfs(vf..vf + 1);
            }),
            (true, false) => return self.remove_vfs(host, Patience::Endless).unwrap_or_default(),
            (true, true) => (1..=last).for_each(|vf| {
                let mut func = Func::lock(self.region(), vf, host);
                let kept = func.function().pci_command & !FunctionRow::VF_MEMORY_OFF;
                *func.function_mut(|f| &mut f.pci_command) = kept | memory_off;
                func.commit(host);
            }),
            (false, false) => {}
        }
        all
    }

    /// Resets and removes all VFs. Returns the functions that were locked meanwhile. `None` when patience ran out: all VFs are
    /// still present, some of them reset.
    pub(super) fn remove_vfs(&self, host: &mut dyn Host, patience: Patience) -> Option<FunctionSet> {
        let vfs = self.vfs_there();
        let removed = vfs.clone().rev().try_fold(0, |locked, vf| {
            // Stops new frames first, then removes the objects.
            self.region().sync(vf, Sync::Present).store(0, Release);
            Some(locked | self.reset_with(host, vf, patience)?)
        });
        if removed.is_none() {
            self.bring_vfs(vfs);
        }
        removed
    }

    /// Enables `vfs` VFs with their memory space in place of the present ones, in one step instead of through the capability's
    /// registers. Returns the functions that were locked meanwhile: other parties may have left work there. `None` when patience
    /// ran out: VFs and registers are as before, except that objects of VFs may be gone.
    pub fn replace_vfs(&self, host: &mut dyn Host, vfs: u8, patience: Patience) -> Option<FunctionSet> {
        let before = self.vfs_there();
        let mut locked = self.remove_vfs(host, patience)?;
        let last = vfs.min(self.region().functions() - 1);
        let mut enable = || {
            for vf in 1..=last {
                let mut func = Func::lock_with(self.region(), vf, host, patience)?;
                reset::defaults(&mut func, self.config());
                func.commit(host);
                locked |= 1 << vf;
            }
            let mut pf = Func::lock_with(self.region(), 0, host, patience)?;
            let beside = pf.function().config_dword(NUM_VFS) & !0xffff;
            set_dword(&mut pf, NUM_VFS, beside | u32::from(vfs));
            let control = pf.function().config_dword(CONTROL) & !(VF_ENABLE | VF_MSE);
            set_dword(&mut pf, CONTROL, if vfs > 0 { control | VF_ENABLE | VF_MSE } else { control });
            pf.commit(host);
            Some(())
        };
        let enabled = enable();
        self.bring_vfs(if enabled.is_some() { 1..last + 1 } else { before });
        enabled.map(|()| locked | 1)
    }

    /// True if the present VFs do not match the PF's registers: the party that was changing them died in the middle.
    pub fn has_half_changed_vfs(&self) -> bool {
        let register = |at| self.region().config_dword(0, at);
        let enabled = register(CONTROL) & VF_ENABLE != 0;
        let said = if enabled { register(NUM_VFS) & 0xffff } else { 0 };
        self.vfs_there().len() as u32 != said
    }

    fn vfs_there(&self) -> Range<u8> {
        1..self.functions().end
    }

    fn bring_vfs(&self, vfs: Range<u8>) {
        vfs.for_each(|vf| self.region().sync(vf, Sync::Present).store(1, Release));
        if self.region().is_switched() {
            self.region().switch_changed();
        }
    }

    /// Nonzero if the PF's VF memory space enable is off; a VF that is reset keeps that bit. Read without the PF's lock: a stopped
    /// program that uses the PF must not block the reset of a VF.
    pub(super) fn vf_memory_off(&self) -> u32 {
        if self.region().config_dword(0, CONTROL) & VF_MSE == 0 { FunctionRow::VF_MEMORY_OFF } else { 0 }
    }
}
