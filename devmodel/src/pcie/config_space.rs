//! The bytes of configuration space.

use crate::{LinkLayer, region::Func, strict::Card};
use hwspec::pcie::{
    ARI_CAP, AriCap, CLASS_CODE_INFINIBAND, ConfigHeader, EXPRESS_CAP, EXTENDED_CONFIG_SIZE, ExpressCap,
    MSIX_CAP, MsixCap, SRIOV_CAP, SriovCap, VENDOR_CAP, VendorCap, bus_order,
};

/// Configuration space after reset of a function.
pub(super) fn defaults(fid: u8, total_vfs: u16, card: Card, link: LinkLayer) -> [u8; EXTENDED_CONFIG_SIZE] {
    let mut space = [0; EXTENDED_CONFIG_SIZE];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let is_pf = fid == 0;
    let mut header = ConfigHeader::new(card.device_id(fid));
    header.set().subsystem_id(0x0008);
    if link == LinkLayer::Infiniband {
        header.set().class_code(CLASS_CODE_INFINIBAND);
    }
    put(0, &bus_order(header.as_bytes()));
    put(EXPRESS_CAP, &bus_order(ExpressCap::new(MSIX_CAP as u8).as_bytes()));
    put(MSIX_CAP, &bus_order(MsixCap::new(if is_pf { VENDOR_CAP as u8 } else { 0 }).as_bytes()));
    if is_pf {
        put(VENDOR_CAP, &bus_order(VendorCap::new(0).as_bytes()));
    }
    let has_vfs = is_pf && total_vfs > 0;
    put(ARI_CAP, &bus_order(AriCap::new(if has_vfs { SRIOV_CAP as u16 } else { 0 }).as_bytes()));
    if has_vfs {
        let mut sriov = SriovCap::new(total_vfs);
        sriov.set().vf_device_id(card.device_id(1));
        put(SRIOV_CAP, &bus_order(sriov.as_bytes()));
    }
    space
}

/// Writes the dword at `at`.
pub(super) fn set_dword(func: &mut Func<'_>, at: usize, value: u32) {
    func.function_mut(|f| &mut f.config)[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
