//! Virtual functions, seen from the physical one (PCI Express 9.3.3; PRM: SR-IOV).

use crate::{config::Config, error::Error, verbs::Device};
use hwspec::{
    cmd::{Opcode, adapter::*},
    pcie::{EXT_CAP_ID_SRIOV, SriovCap},
};
use std::time::Duration;

/// Registers of the SR-IOV capability.
const CONTROL: u16 = 0x08;
const VF_COUNTS: u16 = 0x0c;
const NUM_VFS: u16 = 0x10;
const ROUTING: u16 = 0x14;
const VF_DEVICE: u16 = 0x18;
/// Time for which software must not access VFs after enabling them (PCI Express 9.3.3.3.1).
const SETTLE: Duration = Duration::from_millis(100);

/// The VFs of a physical function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualFunctions {
    /// Maximum number of VFs.
    pub total: u16,
    /// Number of enabled VFs.
    pub enabled: u16,
    /// Routing ID of the first VF, relative to the physical function.
    pub first_offset: u16,
    /// Distance between routing IDs.
    pub stride: u16,
    /// Their PCI device ID.
    pub device_id: u16,
}

struct Capability<'a> {
    config: Config<'a>,
    at: u16,
}

impl Capability<'_> {
    fn read(&self) -> Result<SriovCap, Error> {
        let mut bytes = [0; SriovCap::SIZE];
        for offset in [CONTROL, VF_COUNTS, NUM_VFS, ROUTING, VF_DEVICE] {
            let at = usize::from(offset);
            bytes[at..at + 4].copy_from_slice(&self.config.read(self.at + offset)?.to_be_bytes());
        }
        Ok(SriovCap::from_bytes(bytes))
    }

    fn enable(&self, on: bool) -> Result<(), Error> {
        let mut cap = self.read()?;
        cap.set().vf_enable(on).vf_memory_space(on);
        let control: [u8; 4] = hwspec::layout::prefix(&cap.as_bytes()[usize::from(CONTROL)..]);
        self.config.write16(self.at + CONTROL, u32::from_be_bytes(control) as u16)
    }
}

impl Device {
    fn sriov(&self) -> Result<Capability<'_>, Error> {
        let config = Config(&**self.transport());
        let at = config.extended_capability(EXT_CAP_ID_SRIOV)?.ok_or_else(|| {
            Error::unsupported(
                "this function has no SR-IOV capability: only a physical function makes virtual ones",
            )
        })?;
        Ok(Capability { config, at })
    }

    /// Reads the SR-IOV capability.
    pub fn virtual_functions(&self) -> Result<VirtualFunctions, Error> {
        let cap = self.sriov()?.read()?;
        Ok(VirtualFunctions {
            total: cap.total_vfs(),
            enabled: if cap.vf_enable() { cap.num_vfs() } else { 0 },
            first_offset: cap.first_vf_offset(),
            stride: cap.vf_stride(),
            device_id: cap.vf_device_id(),
        })
    }

    /// Enables VFs 1 to `count`: NumVFs, VF Enable and VF Memory Space, then `ENABLE_HCA` for each. EBUSY if any are
    /// already enabled. Their page requests arrive as events of this function.
    pub fn enable_virtual_functions(&self, count: u16) -> Result<(), Error> {
        let capability = self.sriov()?;
        let cap = capability.read()?;
        if cap.vf_enable() {
            return Err(Error::busy(format!("{} virtual functions are enabled already", cap.num_vfs())));
        }
        if count == 0 || count > cap.total_vfs() {
            let total = cap.total_vfs();
            return Err(Error::invalid(format!(
                "{count} virtual functions were asked for, 1 to {total} can be had"
            )));
        }
        capability.config.write16(capability.at + NUM_VFS, count)?;
        capability.enable(true)?;
        std::thread::sleep(SETTLE);
        for function in 1..=count {
            let input = EnableHcaIn::with(|s| s.function_id(function));
            if let Err(error) = self.function.call::<_, EnableHcaOut>(Opcode::EnableHca, 0, &input) {
                self.take_away(&capability, function - 1)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Disables all VFs and reclaims their pages. Programs that use a VF lose it.
    pub fn disable_virtual_functions(&self) -> Result<(), Error> {
        let capability = self.sriov()?;
        let cap = capability.read()?;
        if !cap.vf_enable() {
            return Ok(());
        }
        self.take_away(&capability, cap.num_vfs())
    }

    fn take_away(&self, capability: &Capability<'_>, enabled: u16) -> Result<(), Error> {
        let mut first = Ok(());
        for function in 1..=enabled {
            let input = DisableHcaIn::with(|s| s.function_id(function));
            let disabled = self.function.call::<_, DisableHcaOut>(Opcode::DisableHca, 0, &input);
            let pages = self.function.pages().and_then(|supply| supply.reclaim(function));
            first = first.and(disabled.map(drop)).and(pages);
        }
        capability.enable(false)?;
        capability.config.write16(capability.at + NUM_VFS, 0)?;
        first
    }
}
