//! MSI-X: the table and pending bits in BAR0 (PCI Express Base 5.0, 7.7.2), and vectors of hosts that keep the table to themselves.

use crate::{
    Adapter,
    host::Host,
    region::{Effect, Func},
    state::MSIX_VECTORS,
};
use hwspec::pcie::MSIX_CAP;

/// Message control of the capability.
pub(super) const MSIX_CONTROL: usize = MSIX_CAP;
/// Message control: enabled.
const ENABLE: u32 = 1 << 31;
/// Message control: all vectors masked.
const FUNCTION_MASK: u32 = 1 << 30;
/// Vector control: masked.
const MASKED: u32 = 1;

/// Raises `vector` when the current job commits; records it as pending while it is masked.
pub(crate) fn raise(func: &mut Func<'_>, vector: u32) {
    let vector = vector as usize;
    if vector >= MSIX_VECTORS {
        return;
    }
    let control = func.function().config_dword(MSIX_CONTROL);
    if control & ENABLE == 0 || !func.function().may_dma() {
        return;
    }
    let entry = func.function().msix[vector];
    if control & FUNCTION_MASK != 0 || entry.control & MASKED != 0 {
        *func.function_mut(|f| &mut f.msix_pending) |= 1 << vector;
        return;
    }
    func.effect(Effect::Msix { vector: vector as u16, address: entry.address, data: entry.data });
}

/// Sends the pending messages that have been unmasked.
pub(super) fn control_changed(func: &mut Func<'_>) {
    let pending = func.function().msix_pending;
    if pending == 0 {
        return;
    }
    *func.function_mut(|f| &mut f.msix_pending) = 0;
    (0..MSIX_VECTORS as u32).filter(|v| pending & 1 << v != 0).for_each(|v| raise(func, v));
}

/// The dword at `offset` of the table, in PCI byte order.
pub(super) fn read_table(func: &Func<'_>, offset: usize) -> u32 {
    let Some(entry) = func.function().msix.get(offset / 16) else { return 0 };
    match offset % 16 {
        0 => entry.address as u32,
        4 => (entry.address >> 32) as u32,
        8 => entry.data,
        _ => entry.control,
    }
}

/// Writes the dword at `offset` of the table.
pub(super) fn write_table(func: &mut Func<'_>, offset: usize, value: u32) {
    if offset / 16 >= MSIX_VECTORS {
        return;
    }
    let entry = &mut func.function_mut(|f| &mut f.msix)[offset / 16];
    match offset % 16 {
        0 => entry.address = entry.address & !0xffff_ffff | u64::from(value & !3),
        4 => entry.address = entry.address & 0xffff_ffff | u64::from(value) << 32,
        8 => entry.data = value,
        _ => entry.control = value & MASKED,
    }
    control_changed(func);
}

/// The dword at `offset` of the pending bits.
pub(super) fn read_pending(func: &Func<'_>, offset: usize) -> u32 {
    match offset {
        0 => func.function().msix_pending as u32,
        4 => (func.function().msix_pending >> 32) as u32,
        _ => 0,
    }
}

/// The message that a vector sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixMessage {
    /// The address it writes to.
    pub address: u64,
    /// The value it writes.
    pub data: u32,
}

impl Adapter {
    /// Programs a vector as a write to the table does, for hosts that keep the table to themselves: sets its
    /// message, or masks it if `None`. Unmasking sends a pending message.
    pub fn msix_program(&self, host: &mut dyn Host, fid: u8, vector: u16, message: Option<MsixMessage>) {
        if !self.is_there(fid) || usize::from(vector) >= MSIX_VECTORS {
            return;
        }
        let mut func = Func::lock(self.region(), fid, host);
        let entry = &mut func.function_mut(|f| &mut f.msix)[usize::from(vector)];
        match message {
            Some(MsixMessage { address, data }) => {
                (entry.address, entry.data, entry.control) = (address, data, 0);
            }
            None => entry.control = MASKED,
        }
        control_changed(&mut func);
        func.commit(host);
    }
}
