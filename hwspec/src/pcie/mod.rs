//! PCI Express: configuration space, capabilities, MSI-X table, and the map of BAR0.
//!
//! The specification prints configuration space as dwords with bit 31 on the left, and so do these layouts. On the bus
//! a dword is little-endian; [`bus_order`] converts between the two.

pub mod caps;
pub mod header;
pub mod ids;

pub use caps::{AriCap, ExpressCap, MsixCap, MsixEntry, SriovCap, VendorCap};
pub use header::{ConfigHeader, StatusCommand};
pub use ids::{ADAPTERS, Adapter, Known, known};

/// Vendor ID of the adapter.
pub const VENDOR_ID: u16 = 0x15b3;
/// ConnectX-5, physical function.
pub const PF_DEVICE_ID: u16 = 0x1017;
/// ConnectX-5, virtual function.
pub const VF_DEVICE_ID: u16 = 0x1018;
/// Class code: network controller, Ethernet.
pub const CLASS_CODE: u32 = 0x02_0000;
/// Class code: network controller, InfiniBand.
pub const CLASS_CODE_INFINIBAND: u32 = 0x02_0700;

/// Bytes of conventional configuration space.
pub const CONFIG_SIZE: usize = 0x100;
/// Bytes of PCI Express configuration space.
pub const EXTENDED_CONFIG_SIZE: usize = 0x1000;
/// Offset of the vendor-specific capability of the physical function.
pub const VENDOR_CAP: usize = 0x40;
/// Offset of the PCI Express capability.
pub const EXPRESS_CAP: usize = 0x60;
/// Offset of the MSI-X capability.
pub const MSIX_CAP: usize = 0x9c;
/// Offset of the first extended capability, ARI.
pub const ARI_CAP: usize = 0x100;
/// Offset of the SR-IOV capability of the physical function.
pub const SRIOV_CAP: usize = 0x180;

/// Offset of Device Control, with Device Status above it, in configuration space.
pub const DEVICE_CONTROL: usize = EXPRESS_CAP + 0x08;
/// Device Control: initiate function level reset.
pub const INITIATE_FLR: u32 = 1 << 15;
/// Offset of SR-IOV Control, with the status register above it.
pub const SRIOV_CONTROL: usize = SRIOV_CAP + 0x08;
/// SR-IOV Control: VF enable.
pub const VF_ENABLE: u32 = 1 << 0;
/// SR-IOV Control: VF memory space enable.
pub const VF_MSE: u32 = 1 << 3;
/// Offset of NumVFs, with the dependency link above it.
pub const NUM_VFS: usize = SRIOV_CAP + 0x10;

/// Capability ID of vendor-specific ones.
pub const CAP_ID_VENDOR: u8 = 0x09;
/// Capability ID of PCI Express.
pub const CAP_ID_EXPRESS: u8 = 0x10;
/// Capability ID of MSI-X.
pub const CAP_ID_MSIX: u8 = 0x11;
/// Extended capability ID of ARI.
pub const EXT_CAP_ID_ARI: u16 = 0x0e;
/// Extended capability ID of SR-IOV.
pub const EXT_CAP_ID_SRIOV: u16 = 0x10;

/// Offset of the initialization segment in BAR0.
pub const INIT_SEGMENT: usize = 0;
/// Offset of the MSI-X table in BAR0.
pub const MSIX_TABLE: usize = 0x2000;
/// Offset of the MSI-X pending bits in BAR0.
pub const MSIX_PBA: usize = 0x3000;
/// Number of MSI-X vectors of a function.
pub const MSIX_VECTORS: usize = 64;
/// The lowest UAR index: pages before it hold the initialization segment and the MSI-X structures.
pub const FIRST_UAR: u32 = 4;
/// Offset of device memory in BAR0 (`memic_bar_start_addr`), after the doorbell pages.
pub const MEMIC_BAR: u64 = 16 << 20;
/// Low bits of the first register of a 64-bit prefetchable memory BAR.
pub const BAR_MEM64_PREFETCH: u32 = 0xc;

/// Routing ID of VF 1, relative to the physical function.
pub const FIRST_VF_OFFSET: u16 = 1;
/// Distance between routing IDs of VFs.
pub const VF_STRIDE: u16 = 1;
/// Page sizes for the alignment of VF BARs, bit n for 2^(n+12) bytes: 4 KiB to 4 MiB, as the capability requires.
pub const SRIOV_PAGE_SIZES: u32 = 0x553;

/// Converts dwords from print order to bytes in bus order, or back. `N` is a multiple of 4.
pub const fn bus_order<const N: usize>(dwords: &[u8; N]) -> [u8; N] {
    assert!(N % 4 == 0);
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = dwords[i ^ 3];
        i += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lies_on_the_bus_as_pci_says() {
        let mut h = ConfigHeader::new(PF_DEVICE_ID);
        h.set().subsystem_id(0x0008).interrupt_pin(1);
        let b = bus_order(h.as_bytes());
        assert_eq!(b[..4], [0xb3, 0x15, 0x17, 0x10]);
        assert_eq!(b[6], 0x10, "capability list");
        assert_eq!(b[9..12], [0, 0, 2]);
        assert_eq!(b[0x10], 0x0c);
        assert_eq!(b[0x2c..0x30], [0xb3, 0x15, 0x08, 0]);
        assert_eq!((b[0x34], b[0x3d]), (0x60, 1));
        assert_eq!(ConfigHeader::from_bytes(bus_order(&b)), h);
    }

    #[test]
    fn capabilities_lie_on_the_bus_as_pci_says() {
        let msix = bus_order(MsixCap::new(0).as_bytes());
        assert_eq!(msix, [0x11, 0, 63, 0, 0, 0x20, 0, 0, 0, 0x30, 0, 0]);
        let express = bus_order(ExpressCap::new(MSIX_CAP as u8).as_bytes());
        assert_eq!(express[..4], [0x10, 0x9c, 0x02, 0]);
        assert_eq!(express[7] & 0x10, 0x10, "function level reset");
        let sriov = bus_order(SriovCap::new(127).as_bytes());
        assert_eq!(sriov[..4], [0x10, 0, 0x01, 0]);
        assert_eq!(sriov[0x0c..0x10], [127, 0, 127, 0]);
        assert_eq!(sriov[0x14..0x18], [1, 0, 1, 0]);
        assert_eq!(sriov[0x1a..0x1c], [0x18, 0x10]);
        let ari = bus_order(AriCap::new(SRIOV_CAP as u16).as_bytes());
        assert_eq!(ari[..4], [0x0e, 0, 0x01, 0x18]);
    }
}
