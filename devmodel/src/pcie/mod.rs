//! The PCI Express side: configuration space, BAR0, interrupts, resets.
//!
//! What a bus does to the adapter is here as methods of [`Adapter`]: configuration reads and writes, BAR reads and
//! writes, resets. Registers of BAR0 are big-endian; a 32-bit or 64-bit value here is the number such a register holds.

mod bar;
mod config;
mod init_segment;
mod msix;
mod reset;
mod sriov;

pub use msix::MsixMessage;
pub(crate) use msix::raise;
pub(crate) use reset::purge_frames;

use crate::{
    Adapter, Config,
    region::{Func, Sync},
};
use std::sync::atomic::Ordering::Release;

/// `FunctionRow::pci_command`: BAR0 answers (memory space enable).
pub(crate) const MEMORY_SPACE: u32 = 1 << 1;
/// `FunctionRow::pci_command`: the function may use DMA and interrupts (bus master enable).
pub(crate) const BUS_MASTER: u32 = 1 << 2;
/// `FunctionRow::pci_command`: the PF's SR-IOV capability switched the memory space of its VFs off.
pub(crate) const VF_MEMORY_OFF: u32 = 1 << 16;

/// Puts the PF into its power-on state.
pub(crate) fn power_on(pf: &mut Func<'_>, config: &Config) {
    reset::defaults(pf, config);
    pf.region().sync(pf.fid(), Sync::Present).store(1, Release);
}

/// Whether the function may transfer data and interrupt.
#[inline]
pub(crate) fn may_dma(func: &Func<'_>) -> bool {
    func.function().pci_command & BUS_MASTER != 0
}

/// Whether BAR0 of the function answers.
#[inline]
fn bar_answers(func: &Func<'_>) -> bool {
    func.function().pci_command & (MEMORY_SPACE | VF_MEMORY_OFF) == MEMORY_SPACE
}

/// Whether registers of BAR0 that make the function transfer data do so.
#[inline]
pub(crate) fn answers(func: &Func<'_>) -> bool {
    bar_answers(func) && may_dma(func)
}

impl Adapter {
    /// The functions that are there: the PF and the VFs from 1 on. VFs come in this order and go in reverse, so those
    /// behind the first that is missing need not be looked at, and cost no memory.
    pub(crate) fn functions(&self) -> std::ops::Range<u8> {
        let all = self.region().functions();
        0..(1..all).find(|vf| !self.region().is_present(*vf)).unwrap_or(all)
    }

    /// Whether `fid` is a function that is there.
    fn is_there(&self, fid: u8) -> bool {
        fid < self.region().functions() && self.region().is_present(fid)
    }
}
