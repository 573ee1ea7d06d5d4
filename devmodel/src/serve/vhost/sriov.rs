//! SR-IOV as the client of a node's functions sees it: a virtual view of the PF's capability, since the node's own VFs stay enabled.
//!
//! VF Enable shows VFs to the client and removes them; each is reset when it is removed.

use crate::{
    pcie::{no_answer, sriov::writable},
    serve::Function,
};
use hwspec::pcie::{self, SRIOV_CAP, SriovCap, VF_ENABLE, bus_order};
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering::*},
    },
};

/// Location of the capability in configuration space.
const CAPABILITY: Range<usize> = SRIOV_CAP..SRIOV_CAP + SriovCap::SIZE;
/// Registers of the capability: control, NumVFs, system page size, VF BAR0.
const CONTROL: usize = pcie::SRIOV_CONTROL - SRIOV_CAP;
const NUM_VFS: usize = pcie::NUM_VFS - SRIOV_CAP;
const PAGE_SIZE: usize = 0x20;
const VF_BAR0: usize = 0x24;

/// The VFs that a client can enable through its PF.
pub struct Sriov {
    vfs: Vec<Arc<dyn Function>>,
    registers: Mutex<[u8; SriovCap::SIZE]>,
    /// Number of enabled VFs.
    present: AtomicU8,
}

impl Sriov {
    /// For a PF with `vfs` as its first VFs, in order; none are enabled.
    pub fn new(pf: &dyn Function, vfs: Vec<Arc<dyn Function>>) -> Arc<Self> {
        let total = u8::try_from(vfs.len()).unwrap_or(u8::MAX);
        let mut capability = SriovCap::new(total.into());
        let id = (pf.config_read(CAPABILITY.start + 0x18, 4) >> 16) as u16;
        capability.set().vf_device_id(id);
        let mut registers = [0; SriovCap::SIZE];
        registers.copy_from_slice(&bus_order(capability.as_bytes()));
        Arc::new(Self { vfs, registers: Mutex::new(registers), present: AtomicU8::new(0) })
    }

    fn registers(&self) -> MutexGuard<'_, [u8; SriovCap::SIZE]> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if function `fid` is visible to its client.
    pub fn shows(&self, fid: u8) -> bool {
        fid <= self.present.load(Acquire)
    }

    /// The dword at `at` of the PF's configuration space, if it is within the capability.
    pub fn read(&self, at: usize) -> Option<[u8; 4]> {
        let at = CAPABILITY.contains(&at).then(|| at - CAPABILITY.start)?;
        self.registers().get(at..).and_then(|rest| rest.first_chunk()).copied()
    }

    /// Handles a write to the PF's configuration space. Returns false if it is outside the capability.
    pub fn write(&self, offset: usize, width: usize, value: u32) -> bool {
        if !CAPABILITY.contains(&offset) {
            return false;
        }
        let mut registers = self.registers();
        let dword = |registers: &[u8; SriovCap::SIZE], at: usize| {
            u32::from_le_bytes([registers[at], registers[at + 1], registers[at + 2], registers[at + 3]])
        };
        let enabled = dword(&registers, CONTROL) & VF_ENABLE != 0;
        let at = (offset - CAPABILITY.start) & !3;
        let shift = 8 * (offset % 4);
        let mask = no_answer(width) << shift & writable(enabled, CAPABILITY.start + at);
        let before = dword(&registers, at);
        let after = before & !mask | value << shift & mask;
        registers[at..at + 4].copy_from_slice(&after.to_le_bytes());
        if at == CONTROL && (after & VF_ENABLE != 0) != enabled {
            let wanted = dword(&registers, NUM_VFS) as usize & 0xffff;
            self.show(if enabled { 0 } else { wanted.min(self.vfs.len()) });
        }
        true
    }

    /// Makes the first `count` VFs visible, freshly reset, and no others.
    fn show(&self, count: usize) {
        let before = self.present.load(Acquire);
        self.present.store(count as u8, Release);
        self.vfs.iter().take(before.into()).for_each(|vf| vf.reset());
    }

    /// Removes all VFs and sets the registers to their values after a reset of the PF.
    pub fn reset(&self) {
        let mut registers = self.registers();
        for at in [CONTROL, NUM_VFS, VF_BAR0, VF_BAR0 + 4] {
            let kept = if at == VF_BAR0 { registers[at] & 0xf } else { 0 };
            registers[at..at + 4].copy_from_slice(&u32::from(kept).to_le_bytes());
        }
        registers[PAGE_SIZE..PAGE_SIZE + 4].copy_from_slice(&1u32.to_le_bytes());
        self.show(0);
    }
}
