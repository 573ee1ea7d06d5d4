//! Configuration space: reads, and the bits that can be written.

use super::{
    config_space::set_dword,
    msix::{self, MSIX_CONTROL},
    sriov,
};
use crate::{Adapter, engine::Runner, host::Host, identity::BAR0_SIZE, region::Func, state::FunctionRow};
use hwspec::pcie::{DEVICE_CONTROL, EXPRESS_CAP, EXTENDED_CONFIG_SIZE, INITIATE_FLR, VENDOR_CAP};

/// Command register: memory space, bus master, parity, SERR, INTx disable.
const COMMAND_MASK: u32 = 0x0546;
/// Command register, as a dword with the status register.
const COMMAND: usize = 0x04;
/// BAR0, low half.
const BAR0: usize = 0x10;
/// Vendor-specific capability: the selected space, a counter that never repeats, the owner of the gateway.
const VENDOR_SPACE: usize = VENDOR_CAP + 0x04;
const VENDOR_COUNTER: usize = VENDOR_CAP + 0x08;
const VENDOR_SEMAPHORE: usize = VENDOR_CAP + 0x0c;

/// The result of a configuration read of `width` bytes without a completer.
pub(crate) fn no_answer(width: usize) -> u32 {
    u32::MAX >> (8 * (4 - width.clamp(1, 4)))
}

/// Bits of the dword at `at` (a multiple of 4) that software can write.
fn writable(fid: u8, has_sriov: bool, vfs_enabled: bool, at: usize) -> u32 {
    let bar_low = !(BAR0_SIZE as u32 - 1);
    match at {
        COMMAND => COMMAND_MASK,
        0x0c => 0x0000_00ff, // cache line size
        BAR0 => bar_low,
        0x14 => u32::MAX,
        0x3c => 0x0000_00ff, // interrupt line
        // All bits of device control except for the reset, which acts and reads as 0.
        DEVICE_CONTROL => 0x0000_7fff,
        x if x == EXPRESS_CAP + 0x10 => 0x0000_0fff, // link control
        x if x == EXPRESS_CAP + 0x28 => 0x0000_001f, // device control 2: completion timeout
        MSIX_CONTROL => 0xc000_0000,
        VENDOR_SPACE if fid == 0 => 0xffff,
        VENDOR_SEMAPHORE if fid == 0 => u32::MAX,
        _ if fid == 0 && has_sriov => sriov::writable(vfs_enabled, at),
        _ => 0,
    }
}

impl Adapter {
    /// Reads `width` (1, 2 or 4) bytes of configuration space at `offset`, little-endian as on the bus. A function
    /// that is not present reads as ones; an access across a dword boundary is cut off there.
    pub fn config_read(&self, host: &mut dyn Host, fid: u8, offset: usize, width: usize) -> u32 {
        if !self.is_there(fid) || offset >= EXTENDED_CONFIG_SIZE {
            return no_answer(width);
        }
        let mut func = Func::lock(self.region(), fid, host);
        if fid == 0 && offset & !3 == VENDOR_COUNTER {
            let count = func.function().config_dword(VENDOR_COUNTER).wrapping_add(1).max(1);
            set_dword(&mut func, VENDOR_COUNTER, count);
            func.commit(host);
        }
        func.function().config_dword(offset & !3) >> (8 * (offset & 3)) & no_answer(width)
    }

    /// Writes `width` (1, 2 or 4) bytes of configuration space at `offset`. Read-only bits keep their value. May reset
    /// the function, or create and remove VFs.
    #[allow(clippy::too_many_arguments)]
    pub fn config_write(
        &self,
        runner: &mut Runner,
        host: &mut dyn Host,
        now: u64,
        fid: u8,
        offset: usize,
        width: usize,
        value: u32,
    ) {
        if !self.is_there(fid) || offset >= EXTENDED_CONFIG_SIZE {
            return;
        }
        let at = offset & !3;
        let shift = 8 * (offset & 3);
        let lanes = no_answer(width) << shift;
        let value = value << shift;
        let mut func = Func::lock(self.region(), fid, host);
        let has_sriov = self.region().functions() > 1;
        let before = func.function().config_dword(at);
        let enabled = has_sriov && fid == 0 && sriov::enabled(&func);
        let mask = writable(fid, has_sriov, enabled, at) & lanes;
        let mut after = before & !mask | value & mask;
        if fid == 0 && at == VENDOR_SEMAPHORE && before != 0 && after != 0 {
            // The semaphore is taken.
            after = before;
        }
        if after != before {
            set_dword(&mut func, at, after);
        }
        let locked = match at {
            COMMAND => {
                let kept =
                    func.function().pci_command & !(FunctionRow::MEMORY_SPACE | FunctionRow::BUS_MASTER);
                *func.function_mut(|f| &mut f.pci_command) =
                    kept | after & (FunctionRow::MEMORY_SPACE | FunctionRow::BUS_MASTER);
                func.commit(host);
                drop(func);
                0
            }
            DEVICE_CONTROL if value & lanes & INITIATE_FLR != 0 => {
                func.commit(host);
                drop(func);
                self.reset(host, fid)
            }
            MSIX_CONTROL => {
                msix::control_changed(&mut func);
                func.commit(host);
                drop(func);
                0
            }
            _ => {
                func.commit(host);
                drop(func);
                if has_sriov && fid == 0 { self.sriov_written(host, at, before, after) } else { 0 }
            }
        };
        // Runs jobs that waited for bus mastering or memory space, or that found a function locked by this access.
        runner.run_waiting(self, host, now, locked | 1 << fid);
    }
}
